#include "actors/remote_engram.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

#include "actors/engram_cache.h"
#include "actors/engram_replicas.h"
#include "actors/engram_wire.h"
#include "actors/service_methods.h"
#include "core/log.h"
#include "engine/engram_tables.h"
#include "transport/calls.h"

namespace cedar::actors {
namespace {

using transport::Clock;
using transport::TimePoint;

/// Between two rounds over the replicas of a shard, of which none answered.
constexpr auto kRoundPause = std::chrono::milliseconds(25);
/// Rows asked for ahead that lie unused for so long are of a request that is gone.
constexpr auto kStaleAfter = std::chrono::seconds(5);

/// Rows of one shard that travel together.
struct Batch {
  enum class State : uint8_t { travelling, here, failed };
  LayerId layer = 0;
  int32_t shard = 0, shards = 0;
  std::vector<int64_t> rows;
  TimePoint begun, deadline;
  bool ahead = false;
  size_t unused = 0;                           // rows of a batch that was asked for ahead
  std::vector<transport::NodeIdentity> asked;  // so far
  State state = State::travelling;
  Error error;                   // of the last answer
  std::vector<std::byte> reply;  // here: the rows
};
using BatchPtr = std::shared_ptr<Batch>;

struct RowKey {
  LayerId layer = 0;
  int64_t row = 0;
  friend bool operator==(const RowKey&, const RowKey&) = default;
};
struct RowHash {
  size_t operator()(const RowKey& key) const {
    return static_cast<size_t>((static_cast<uint64_t>(key.row) * 0x9E3779B97F4A7C15ull) ^
                               (static_cast<uint64_t>(key.layer) << 32));
  }
};

/// Another replica, or the same one later, may do better.
bool may_pass(Errc code) {
  return code == Errc::unavailable || code == Errc::deadline_exceeded || code == Errc::overloaded ||
         code == Errc::stale_generation || code == Errc::unsupported;
}

/// The different rows of a fetch, and where each goes.
struct Wanted {
  int64_t row = 0;
  size_t first = 0, count = 0;  // in the order of the positions
};

}  // namespace

// A mutex, because engines wait here for what the data plane's threads bring; held for table work and copies of rows.
class RemoteEngram::Impl : public std::enable_shared_from_this<RemoteEngram::Impl> {
 public:
  Impl(const DataPlane& plane, const model::EngramLayout& layout, int64_t row_bytes,
       const RemoteEngramOptions& options)
      : plane_(plane),
        options_(options),
        row_bytes_(row_bytes),
        cache_(options.cache_bytes, row_bytes) {
    for (const auto& table : layout.layers) table_rows_[table.layer] = table.rows;
  }

  void watch_directory() {
    on_change_ = plane_.directory->on_change([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->directory_changed();
    });
    directory_changed();
  }

  Status fetch(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed);
  void prefetch(LayerId layer, std::span<const int64_t> row_ids);
  RemoteEngramStats stats() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  struct Place {
    BatchPtr batch;
    size_t index = 0;
  };
  /// What a look at the rows of a fetch found.
  struct Look {
    std::vector<Wanted> missing;
    std::vector<BatchPtr> travelling;  // that bring some of them
    std::vector<int64_t> unasked;      // nobody brings these
  };

  void directory_changed();
  // REQUIRES: locked.
  Look look(LayerId layer, const std::vector<Wanted>& wanted, std::span<const size_t> order,
            uint8_t* packed, bool first);
  const uint8_t* take(LayerId layer, int64_t row, const Place& place);
  std::vector<BatchPtr> make_batches(LayerId layer, std::span<const int64_t> rows,
                                     TimePoint deadline, bool ahead, std::string& nobody);
  bool make_room_ahead(int64_t bytes, TimePoint now);
  void give_up(const BatchPtr& batch);
  void publish() const {
    if (options_.board) options_.board->set_engram(stats_);
  }
  void drop_ahead(const BatchPtr& batch);
  int64_t bytes_of(const Batch& batch) const {
    return static_cast<int64_t>(batch.rows.size()) * row_bytes_;
  }

  void ask(const BatchPtr& batch);
  void answered(const BatchPtr& batch, const transport::NodeIdentity& node,
                Result<std::vector<std::byte>> answer);

  const DataPlane plane_;
  const RemoteEngramOptions options_;
  const int64_t row_bytes_;
  std::map<LayerId, int64_t> table_rows_;
  std::shared_ptr<void> on_change_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  EngramCache cache_;
  EngramReplicas replicas_;
  uint64_t directory_version_ = 0;
  std::unordered_map<RowKey, Place, RowHash> places_;  // on their way, or asked for ahead and here
  std::deque<BatchPtr> ahead_;                         // oldest first
  int64_t ahead_bytes_ = 0;
  RemoteEngramStats stats_;
};

void RemoteEngram::Impl::directory_changed() {
  const auto providers = plane_.directory->services(ServiceRole::engram);
  std::lock_guard lock(mutex_);
  replicas_.update(providers);
  ++directory_version_;
  changed_.notify_all();
}

Status RemoteEngram::Impl::fetch(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) {
  const TimePoint begin = Clock::now();
  const TimePoint deadline = begin + options_.timeout;
  std::vector<size_t> order(row_ids.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return row_ids[a] < row_ids[b]; });
  std::vector<Wanted> wanted;
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t row = row_ids[order[i]];
    if (wanted.empty() || wanted.back().row != row) wanted.push_back({row, i, 0});
    ++wanted.back().count;
  }

  std::unique_lock lock(mutex_);
  std::vector<BatchPtr> own;
  std::string nobody;
  Error last{Errc::unavailable, ""};
  for (bool first = true;; first = false) {
    Look found = look(layer, wanted, order, packed, first);
    if (found.missing.empty()) {
      if (!first)
        stats_.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
      publish();
      return {};
    }
    wanted = std::move(found.missing);
    bool failed = false;
    for (const BatchPtr& batch : std::exchange(own, {})) {
      if (batch->state == Batch::State::travelling) own.push_back(batch);
      if (batch->state != Batch::State::failed) continue;
      failed = true;
      last = batch->error;
    }
    if (Clock::now() >= deadline || (failed && !may_pass(last.code))) {
      ++stats_.failed_fetches;
      publish();
      stats_.wait_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
      if (failed && !may_pass(last.code)) return last;
      // What this fetch gives up may still come for others.
      if (last.context.empty() && !found.travelling.empty()) {
        const Batch& slow = *found.travelling.front();
        last.context = "Engram shard " + std::to_string(slow.shard) + " of " +
                       std::to_string(slow.shards) + " did not answer";
      }
      if (last.context.empty()) last.context = nobody;
      return make_error(Errc::unavailable,
                        last.context + ", in " + std::to_string(options_.timeout.count()) + " ms");
    }
    const uint64_t version = directory_version_;
    if (failed) {
      changed_.wait_until(lock, std::min(deadline, Clock::now() + kRoundPause));
      continue;
    }
    nobody.clear();
    const auto fresh = make_batches(layer, found.unasked, deadline, false, nobody);
    if (!fresh.empty()) {
      own.insert(own.end(), fresh.begin(), fresh.end());
      lock.unlock();
      for (const BatchPtr& batch : fresh) ask(batch);
      lock.lock();
    }
    found.travelling.insert(found.travelling.end(), fresh.begin(), fresh.end());
    changed_.wait_until(lock, deadline, [&] {
      if (!nobody.empty() && directory_version_ != version) return true;
      const auto travels = [](const BatchPtr& batch) {
        return batch->state == Batch::State::travelling;
      };
      return !found.travelling.empty() &&
             std::none_of(found.travelling.begin(), found.travelling.end(), travels) &&
             nobody.empty();
    });
  }
}

RemoteEngram::Impl::Look RemoteEngram::Impl::look(LayerId layer, const std::vector<Wanted>& wanted,
                                                  std::span<const size_t> order, uint8_t* packed,
                                                  bool first) {
  Look found;
  for (const Wanted& want : wanted) {
    const uint8_t* bytes = cache_.find(layer, want.row);
    BatchPtr batch;  // keeps the bytes until they are copied
    if (bytes != nullptr) {
      if (first) ++stats_.hits;
    } else if (const auto place = places_.find({layer, want.row}); place != places_.end()) {
      batch = place->second.batch;
      const bool here = batch->state == Batch::State::here;
      if (first) ++(batch->ahead ? (here ? stats_.ahead : stats_.late) : stats_.misses);
      if (here) {
        bytes = take(layer, want.row, place->second);
      } else if (found.travelling.empty() || found.travelling.back() != batch) {
        found.travelling.push_back(batch);
      }
    } else {
      if (first) ++stats_.misses;
      found.unasked.push_back(want.row);
    }
    if (bytes == nullptr) {
      found.missing.push_back(want);
      continue;
    }
    for (size_t i = 0; i < want.count; ++i) {
      std::copy_n(bytes, row_bytes_,
                  packed + static_cast<int64_t>(order[want.first + i]) * row_bytes_);
    }
  }
  return found;
}

/// The bytes stay until the caller lets go of the batch.
const uint8_t* RemoteEngram::Impl::take(LayerId layer, int64_t row, const Place& place) {
  const BatchPtr batch = place.batch;
  const auto* bytes = reinterpret_cast<const uint8_t*>(batch->reply.data()) +
                      static_cast<int64_t>(place.index) * row_bytes_;
  cache_.insert(layer, row, bytes);
  places_.erase({layer, row});
  if (batch->ahead && --batch->unused == 0) drop_ahead(batch);
  return bytes;
}

void RemoteEngram::Impl::prefetch(LayerId layer, std::span<const int64_t> row_ids) {
  std::vector<int64_t> rows(row_ids.begin(), row_ids.end());
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  std::vector<BatchPtr> batches;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(rows, [&](int64_t row) {
      return cache_.find(layer, row) != nullptr || places_.count({layer, row}) != 0;
    });
    const TimePoint now = Clock::now();
    if (rows.empty() || !make_room_ahead(static_cast<int64_t>(rows.size()) * row_bytes_, now)) {
      return;
    }
    std::string nobody;
    batches = make_batches(layer, rows, now + options_.timeout, true, nobody);
    for (const BatchPtr& batch : batches) {
      batch->unused = batch->rows.size();
      stats_.prefetched += static_cast<int64_t>(batch->rows.size());
      ahead_bytes_ += bytes_of(*batch);
      ahead_.push_back(batch);
    }
  }
  for (const BatchPtr& batch : batches) ask(batch);
}

bool RemoteEngram::Impl::make_room_ahead(int64_t bytes, TimePoint now) {
  while (ahead_bytes_ + bytes > options_.ahead_bytes) {
    if (ahead_.empty() || ahead_.front()->begun + kStaleAfter > now) return false;
    give_up(ahead_.front());
  }
  return true;
}

/// Rows of one layer in batches of one shard each. `nobody` says what is wrong with the rows that are in none.
std::vector<BatchPtr> RemoteEngram::Impl::make_batches(LayerId layer, std::span<const int64_t> rows,
                                                       TimePoint deadline, bool ahead,
                                                       std::string& nobody) {
  std::vector<BatchPtr> batches;
  if (rows.empty()) return batches;
  const int32_t shards = replicas_.shards();
  if (shards == 0) {
    nobody = "no node of the cluster serves Engram tables";
    return batches;
  }
  const int64_t table_rows = table_rows_.at(layer);
  BatchPtr batch;
  for (const int64_t row : rows) {  // ascending, so shards follow one another
    const int32_t shard = engine::engram_shard_of(table_rows, row, shards);
    if (replicas_.replicas(shard) == 0) {
      nobody = "no node of the cluster serves Engram shard " + std::to_string(shard) + " of " +
               std::to_string(shards);
      continue;
    }
    if (!batch || batch->shard != shard || batch->rows.size() == kMaxEngramRows) {
      batch = std::make_shared<Batch>();
      batch->layer = layer;
      batch->shard = shard;
      batch->shards = shards;
      batch->begun = Clock::now();
      batch->deadline = deadline;
      batch->ahead = ahead;
      batches.push_back(batch);
    }
    places_[{layer, row}] = {batch, batch->rows.size()};
    batch->rows.push_back(row);
  }
  return batches;
}

/// Its rows are as if nobody had asked for them.
void RemoteEngram::Impl::give_up(const BatchPtr& batch) {
  for (const int64_t row : batch->rows) {
    const auto place = places_.find({batch->layer, row});
    if (place != places_.end() && place->second.batch == batch) places_.erase(place);
  }
  if (!batch->ahead) return;
  stats_.unused += static_cast<int64_t>(batch->unused);
  drop_ahead(batch);
}

void RemoteEngram::Impl::drop_ahead(const BatchPtr& batch) {
  const BatchPtr kept = batch;  // may be the list's own
  const auto at = std::find(ahead_.begin(), ahead_.end(), kept);
  if (at == ahead_.end()) return;
  ahead_bytes_ -= bytes_of(*kept);
  ahead_.erase(at);
}

void RemoteEngram::Impl::ask(const BatchPtr& batch) {
  std::optional<ServiceProvider> provider;
  TimePoint limit;
  {
    std::lock_guard lock(mutex_);
    const TimePoint now = Clock::now();
    // With another number of shards, these rows belong to other batches.
    if (replicas_.shards() == batch->shards && now < batch->deadline) {
      provider = replicas_.next(batch->shard, batch->asked, now);
    }
    if (!provider) {
      if (batch->error.context.empty()) batch->error = make_error(Errc::unavailable, "no replica");
      batch->error.context = "Engram shard " + std::to_string(batch->shard) + " of " +
                             std::to_string(batch->shards) + ": " + batch->error.context;
      batch->state = Batch::State::failed;
      give_up(batch);
      changed_.notify_all();
      return;
    }
    batch->asked.push_back(identity_of(provider->endpoint));
    // One that is slow must leave time for the others.
    const bool others = batch->asked.size() < replicas_.replicas(batch->shard);
    limit = others ? std::min(batch->deadline, now + options_.timeout / 4) : batch->deadline;
    ++stats_.calls;
  }
  plane_.calls->call(
      provider->target(), kFetchEngramRows, encode_engram_query(batch->layer, batch->rows), limit,
      [weak = weak_from_this(), batch, node = identity_of(provider->endpoint)](auto answer) {
        if (const auto self = weak.lock()) self->answered(batch, node, std::move(answer));
      });
}

void RemoteEngram::Impl::answered(const BatchPtr& batch, const transport::NodeIdentity& node,
                                  Result<std::vector<std::byte>> answer) {
  {
    std::lock_guard lock(mutex_);
    const int64_t expected = bytes_of(*batch);
    if (answer && static_cast<int64_t>(answer->size()) != expected) {
      answer = make_error(Errc::internal, "a reply of " + std::to_string(answer->size()) +
                                              " bytes, expected " + std::to_string(expected));
    }
    if (answer) {
      replicas_.succeeded(node);
      batch->reply = std::move(*answer);
      batch->state = Batch::State::here;
      changed_.notify_all();
      return;
    }
    ++stats_.calls_failed;
    replicas_.failed(node, Clock::now());
    batch->error = answer.error();
    if (!may_pass(batch->error.code)) {
      batch->state = Batch::State::failed;
      give_up(batch);
      changed_.notify_all();
      return;
    }
  }
  log::debug("engram", "a replica failed",
             {{"node", int64_t{node.node.value}}, {"error", answer.error().message()}});
  ask(batch);
}

RemoteEngram::RemoteEngram(const DataPlane& plane, const model::EngramLayout& layout,
                           int64_t row_bytes, const RemoteEngramOptions& options)
    : impl_(std::make_shared<Impl>(plane, layout, row_bytes, options)) {
  impl_->watch_directory();
}
RemoteEngram::~RemoteEngram() = default;
Status RemoteEngram::fetch(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) {
  return impl_->fetch(layer, row_ids, packed);
}
void RemoteEngram::prefetch(LayerId layer, std::span<const int64_t> row_ids) {
  impl_->prefetch(layer, row_ids);
}
RemoteEngramStats RemoteEngram::stats() const { return impl_->stats(); }

}  // namespace cedar::actors
