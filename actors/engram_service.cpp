#include "actors/engram_service.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "actors/engram_wire.h"
#include "actors/service_methods.h"
#include "transport/calls.h"

namespace cedar::actors {
namespace {

class EngramService final : public NodeService {
 public:
  EngramService(std::shared_ptr<const engine::EngramTables> tables, transport::Calls& calls,
                const EngramServiceOptions& options)
      : tables_(std::move(tables)), calls_(calls), metrics_(options.metrics) {
    for (int32_t i = 0; i < options.threads; ++i) threads_.emplace_back([this] { run(); });
    // The queue has no bound of its own: Calls bounds what is being served.
    calls_.serve(
        kFetchEngramRows, [this](const transport::CallContext& context,
                                 std::span<const std::byte> request, transport::CallReply reply) {
          auto query = decode_engram_query(request);
          if (!query) return reply(query.error());
          std::lock_guard lock(mutex_);
          queue_.push_back(
              {std::move(*query), context.deadline, transport::Clock::now(), std::move(reply)});
          wake_.notify_one();
        });
  }

  ~EngramService() override {
    calls_.serve(kFetchEngramRows, {});
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Service description() const override {
    const engine::EngramShard shard = tables_->shard();
    return {ServiceRole::engram, shard.index, shard.count, ""};
  }

 private:
  struct Question {
    EngramQuery query;
    transport::TimePoint deadline;
    transport::TimePoint arrival;
    transport::CallReply reply;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return ended_ || !queue_.empty(); });
      if (ended_) return;
      Question question = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      answer(std::move(question));
      lock.lock();
    }
  }

  void answer(Question question) const {
    using monitoring::MetricId;
    auto packed = read(question);
    const auto time = transport::Clock::now() - question.arrival;
    metrics_->observe(MetricId::engram_service_seconds,
                      std::chrono::duration<double>(time).count());
    metrics_->add(MetricId::engram_service_questions,
                  packed ? monitoring::Answer::ok : monitoring::Answer::failed);
    if (packed) {
      metrics_->add(MetricId::engram_service_rows, static_cast<double>(question.query.rows.size()));
    }
    question.reply(std::move(packed));
  }

  Result<std::vector<std::byte>> read(const Question& question) const {
    if (question.deadline <= transport::Clock::now()) {
      return make_error(Errc::deadline_exceeded, "waited too long");
    }
    const EngramQuery& query = question.query;
    std::vector<std::byte> packed(query.rows.size() * static_cast<size_t>(tables_->row_bytes()));
    CEDAR_CHECK_OK(
        tables_->copy(query.layer, query.rows, reinterpret_cast<uint8_t*>(packed.data())));
    return packed;
  }

  const std::shared_ptr<const engine::EngramTables> tables_;
  transport::Calls& calls_;
  const std::shared_ptr<monitoring::Metrics> metrics_;
  // Between the data plane's thread and those that read.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Question> queue_;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

NodeServiceFactory engram_service(std::shared_ptr<const engine::EngramTables> tables,
                                  const EngramServiceOptions& options) {
  return [tables = std::move(tables),
          options](const DataPlane& plane) -> Result<std::unique_ptr<NodeService>> {
    return std::unique_ptr<NodeService>(
        std::make_unique<EngramService>(tables, *plane.calls, options));
  };
}

}  // namespace cedar::actors
