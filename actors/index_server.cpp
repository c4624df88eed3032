#include "actors/index_server.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "actors/index_messages.h"
#include "actors/service_methods.h"
#include "core/arena.h"
#include "core/log.h"
#include "core/thread_pool.h"

namespace cedar::actors {

using transport::CallContext;
using transport::CallReply;
using transport::NodeIdentity;
using Clock = std::chrono::steady_clock;

/// The mutex guards the queue and the numbers; keys belong to the worker thread alone. Handlers run on the data plane's
/// thread and only queue.
class IndexServer::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(engine::IndexKeyStore store, const IndexServerOptions& options)
      : options_(options), store_(std::move(store)), pool_(options.threads), arena_(Device{}) {
    ctx_.pool = &pool_;
    ctx_.arena = &arena_;
    stats_.keys = store_.stats();
  }

  void serve(transport::Calls& calls) {
    for (const transport::CallMethod method : {kAppendIndexKeys, kScanIndexKeys, kCloseIndexPart}) {
      calls.serve(method, [weak = weak_from_this(), method](const CallContext& context,
                                                            Bytes request, CallReply reply) {
        const auto self = weak.lock();
        if (!self) return reply(make_error(Errc::unavailable, "this indexer ends"));
        self->take({method, context, std::move(request), std::move(reply)});
      });
    }
    calls.watch_peers([weak = weak_from_this()](const NodeIdentity& peer, const Error&) {
      if (const auto self = weak.lock()) self->peer_down(peer);
    });
  }

  void run() {
    thread_ = std::thread([this] { work(); });
  }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
    jobs_.clear();
  }

  IndexServerStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  struct Call {
    transport::CallMethod method = 0;
    CallContext context;
    Bytes request;
    CallReply reply;
  };
  struct PeerDown {
    NodeIdentity peer;
  };
  using Job = std::variant<Call, PeerDown>;

  void take(Call call) {
    {
      std::lock_guard lock(mutex_);
      if (!ended_ && jobs_.size() < options_.max_waiting) {
        jobs_.emplace_back(std::move(call));
        changed_.notify_one();
        return;
      }
      ++stats_.refused;
    }
    call.reply(
        make_error(Errc::overloaded, std::to_string(options_.max_waiting) + " calls are waiting"));
  }

  void peer_down(const NodeIdentity& peer) {
    std::lock_guard lock(mutex_);
    jobs_.emplace_back(PeerDown{peer});
    changed_.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (!ended_) {
      // Leases end while nobody calls, too.
      changed_.wait_for(lock, std::chrono::seconds(1), [&] { return ended_ || !jobs_.empty(); });
      if (ended_) return;
      const bool any = !jobs_.empty();
      Job job = PeerDown{};
      if (any) {
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      lock.unlock();
      const int64_t expired = store_.expire(Clock::now());
      if (any) std::visit([&](auto& what) { handle(what); }, job);
      lock.lock();
      stats_.expired_parts += static_cast<uint64_t>(expired);
      stats_.keys = store_.stats();
    }
  }

  void handle(const PeerDown& down) {
    const auto found = owners_.find(life(down.peer));
    if (found == owners_.end()) return;
    store_.close_owner(found->second);
    owners_.erase(found);
    count(&IndexServerStats::lost_owners, 1);
  }

  void handle(Call& call) {
    if (Clock::now() >= call.context.deadline) {
      return call.reply(make_error(Errc::deadline_exceeded, "the indexer is busy"));
    }
    call.reply(answer(call));
  }

  Result<Bytes> answer(const Call& call) {
    switch (call.method) {
      case kAppendIndexKeys: return append(call);
      case kScanIndexKeys: return scan(call);
      default: return close(call);
    }
  }

  Result<Bytes> append(const Call& call) {
    CEDAR_TRY(const AppendKeys message, parse_append(call.request));
    const engine::IndexPartId part{owner(call.context.caller), message.part};
    if (message.first == 0) {
      CEDAR_CHECK_OK(store_.open(part, message.layout, lease_end()));
    }
    const Status taken =
        store_.append(part, message.first, message.blocks, message.keys, lease_end());
    if (!taken) {
      if (message.first == 0) store_.close(part);
      return taken.error();
    }
    count(&IndexServerStats::appends, 1);
    return Bytes();
  }

  Result<Bytes> scan(const Call& call) {
    CEDAR_TRY(const ScanKeys message, parse_scan(call.request));
    std::vector<engine::IndexPartRows> parts;
    const uint64_t caller = owner(call.context.caller);
    for (const ScanPart& part : message.parts) {
      parts.push_back({{caller, part.part}, part.blocks, part.rows});
    }
    arena_.reset();
    CEDAR_TRY(const engine::IndexFindings findings,
              store_.scan(ctx_, message.questions, parts, lease_end()));
    count(&IndexServerStats::scans, 1);
    count(&IndexServerStats::scanned_rows, static_cast<uint64_t>(message.questions.rows));
    return serialise(findings);
  }

  Result<Bytes> close(const Call& call) {
    CEDAR_TRY(const uint64_t part, parse_close(call.request));
    store_.close({owner(call.context.caller), part});
    return Bytes();
  }

  static std::pair<uint32_t, uint64_t> life(const NodeIdentity& node) {
    return {node.node.value, node.generation};
  }

  uint64_t owner(const NodeIdentity& caller) {
    const auto [at, fresh] = owners_.try_emplace(life(caller), next_owner_);
    if (fresh) ++next_owner_;
    return at->second;
  }

  Clock::time_point lease_end() const { return Clock::now() + options_.lease; }

  void count(uint64_t IndexServerStats::*what, uint64_t by) {
    std::lock_guard lock(mutex_);
    stats_.*what += by;
  }

  const IndexServerOptions options_;
  // Of the worker thread.
  engine::IndexKeyStore store_;
  ThreadPool pool_;
  Arena arena_;
  kernels::KernelContext ctx_;
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> owners_;  // by life of a node
  uint64_t next_owner_ = 1;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool ended_ = false;
  IndexServerStats stats_;
  std::thread thread_;
};

Result<std::unique_ptr<IndexServer>> IndexServer::start(transport::Calls& calls,
                                                        const IndexServerOptions& options) {
  CEDAR_TRY(engine::IndexKeyStore store, engine::IndexKeyStore::create(options.memory_bytes));
  auto impl = std::make_shared<Impl>(std::move(store), options);
  impl->run();
  impl->serve(calls);
  return std::unique_ptr<IndexServer>(new IndexServer(std::move(impl)));
}

IndexServer::IndexServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

IndexServer::~IndexServer() {
  impl_->stop();
  const IndexServerStats s = impl_->stats();
  log::info("indexer", "ends",
            {{"appends", s.appends},
             {"scans", s.scans},
             {"scanned_rows", s.scanned_rows},
             {"expired_parts", s.expired_parts},
             {"lost_owners", s.lost_owners},
             {"parts_left", s.keys.parts}});
}

IndexServerStats IndexServer::stats() const { return impl_->stats(); }

void IndexServer::report(monitoring::Metrics& metrics) const {
  using monitoring::MetricId;
  const IndexServerStats s = stats();
  metrics.set(MetricId::indexer_bytes, static_cast<double>(s.keys.bytes_used));
  metrics.set(MetricId::indexer_capacity, static_cast<double>(s.keys.bytes_total));
  metrics.set(MetricId::indexer_parts, static_cast<double>(s.keys.parts));
  metrics.set(MetricId::indexer_blocks, static_cast<double>(s.keys.blocks));
  metrics.raise(MetricId::indexer_appends, static_cast<double>(s.appends));
  metrics.raise(MetricId::indexer_scans, static_cast<double>(s.scans));
  metrics.raise(MetricId::indexer_scanned_rows, static_cast<double>(s.scanned_rows));
  metrics.raise(MetricId::indexer_refused, static_cast<double>(s.refused));
  metrics.raise(MetricId::indexer_expired_parts, static_cast<double>(s.expired_parts));
}

NodeServiceFactory index_server(const IndexServerOptions& options) {
  return [options](const DataPlane& plane) -> Result<std::unique_ptr<NodeService>> {
    CEDAR_TRY(std::unique_ptr<IndexServer> server, IndexServer::start(*plane.calls, options));
    return std::unique_ptr<NodeService>(std::move(server));
  };
}

}  // namespace cedar::actors
