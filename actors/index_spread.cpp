#include "actors/index_spread.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "actors/index_messages.h"
#include "actors/index_parts.h"
#include "actors/index_scan_calls.h"
#include "actors/service_methods.h"
#include "core/log.h"

namespace cedar::actors {
namespace {

using Clock = std::chrono::steady_clock;
using engine::IndexSequence;

/// How long an indexer that has no room is not offered any keys.
constexpr std::chrono::seconds kFullPause{2};

struct Holder {
  IndexHolder where;
  bool failed = false;  // until the directory changes; nothing is said to it
  Clock::time_point full_until{};
  std::vector<uint64_t> unwanted;  // parts that it is told to close once it can be talked to again
};

/// Replies of the calls of a scan. Engine threads wait for the data plane's thread here, hence the mutex.
class Replies {
 public:
  explicit Replies(size_t count) : replies_(count), left_(count) {}

  void set(size_t call, Result<Bytes> reply) {
    std::lock_guard lock(mutex_);
    replies_[call] = std::move(reply);
    if (--left_ == 0) changed_.notify_all();
  }
  /// Every call ends at its deadline at the latest.
  std::vector<Result<Bytes>> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return left_ == 0; });
    std::vector<Result<Bytes>> out;
    for (std::optional<Result<Bytes>>& reply : replies_) out.push_back(std::move(*reply));
    return out;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::optional<Result<Bytes>>> replies_;
  size_t left_;
};

}  // namespace

/// The mutex guards all of it: engines of several stages and the data plane's thread meet here. It is held for
/// bookkeeping, never for a call or a copy of keys.
class IndexSpread::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(transport::Calls& calls, const IndexSpreadOptions& options)
      : calls_(calls), options_(options) {}

  void set_holders(std::vector<IndexHolder> holders);
  IndexSpreadStats stats() const;
  IndexSequence open(const engine::IndexBlockLayout& layout);
  std::vector<int32_t> wanted(IndexSequence id, int64_t finished);
  void append(IndexSequence id, std::span<const int32_t> blocks, std::span<const std::byte> keys);
  void close(IndexSequence id);
  std::unique_ptr<engine::IndexScan> scan(const engine::IndexQuestions& questions,
                                          std::span<const engine::IndexScanRows> entries);
  /// What of a scan's calls failed.
  void scanned(std::span<const ScanPiece> pieces, std::span<const ScanCall> calls,
               std::span<const Result<Bytes>> replies);

 private:
  struct Closing {
    transport::CallTarget target;
    uint64_t part = 0;
  };

  void appended(IndexSequence id, uint64_t number, HolderId holder, size_t blocks,
                const Result<Bytes>& reply);
  /// All REQUIRE the lock; what has to be told to indexers is added to `closing`.
  void fail_holder(HolderId id, const Error& error, std::vector<Closing>& closing);
  void lose_part(SpreadSequence& sequence, IndexPart& part, std::vector<Closing>& closing);
  void close_part(HolderId id, uint64_t part, std::vector<Closing>& closing);
  const Holder* find(HolderId id) const {
    const auto found = holders_.find(id);
    return found == holders_.end() ? nullptr : &found->second;
  }
  /// Best effort: leases end by themselves.
  void tell(const std::vector<Closing>& closing);

  transport::Calls& calls_;
  const IndexSpreadOptions options_;
  mutable std::mutex mutex_;
  std::map<HolderId, Holder> holders_;
  std::vector<HolderId> order_;  // of the directory
  std::map<IndexSequence, SpreadSequence> sequences_;
  uint64_t next_sequence_ = 1;
  uint64_t next_part_ = 1;
  IndexSpreadStats stats_;
};

namespace {

class SpreadScan final : public engine::IndexScan {
 public:
  std::span<const int32_t> asked(size_t entry) const override { return blocks[entry]; }

  std::vector<Answer> collect() override {
    std::vector<Result<Bytes>> got = replies->wait();
    std::vector<Answer> answers = join_replies(questions, pieces, calls, got);
    spread->scanned(pieces, calls, got);
    return answers;
  }

  std::shared_ptr<IndexSpread::Impl> spread;
  engine::IndexQuestions questions;
  std::vector<std::vector<int32_t>> blocks;  // asked for, per entry
  std::vector<ScanPiece> pieces;
  std::vector<ScanCall> calls;
  std::shared_ptr<Replies> replies;
};

}  // namespace

void IndexSpread::Impl::set_holders(std::vector<IndexHolder> holders) {
  std::vector<Closing> closing;
  {
    std::lock_guard lock(mutex_);
    std::map<HolderId, Holder> next;
    order_.clear();
    for (IndexHolder& holder : holders) {
      const HolderId id = holder_id(holder.target);
      order_.push_back(id);
      if (const Holder* known = find(id)) {
        for (const uint64_t part : known->unwanted) closing.push_back({holder.target, part});
      }
      next[id].where = std::move(holder);
    }
    holders_ = std::move(next);
    for (auto& [id, sequence] : sequences_) {
      for (IndexPart& part : sequence.parts()) {
        if (!part.lost && find(part.holder) == nullptr) lose_part(sequence, part, closing);
      }
    }
  }
  tell(closing);
}

IndexSpreadStats IndexSpread::Impl::stats() const {
  std::lock_guard lock(mutex_);
  IndexSpreadStats out = stats_;
  out.holders = static_cast<int64_t>(holders_.size());
  for (const auto& [id, holder] : holders_) out.failed_holders += holder.failed ? 1 : 0;
  out.sequences = static_cast<int64_t>(sequences_.size());
  for (const auto& [id, sequence] : sequences_) {
    for (const IndexPart& part : sequence.parts()) out.spread_blocks += part.held;
  }
  return out;
}

IndexSequence IndexSpread::Impl::open(const engine::IndexBlockLayout& layout) {
  std::lock_guard lock(mutex_);
  const IndexSequence id(next_sequence_++);
  sequences_.emplace(id, SpreadSequence(layout));
  return id;
}

std::vector<int32_t> IndexSpread::Impl::wanted(IndexSequence id, int64_t finished) {
  std::lock_guard lock(mutex_);
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return {};
  const auto now = Clock::now();
  std::vector<HolderId> open;
  for (const HolderId& holder : order_) {
    const Holder& state = holders_.at(holder);
    if (!state.failed && state.full_until <= now) open.push_back(holder);
  }
  const int64_t most = std::max<int64_t>(1, options_.append_bytes / found->second.layout().bytes());
  return found->second.assign(finished, open, most, next_part_);
}

void IndexSpread::Impl::append(IndexSequence id, std::span<const int32_t> blocks,
                               std::span<const std::byte> keys) {
  struct Sending {
    transport::CallTarget target;
    AppendKeys message;
    Bytes keys;
  };
  std::map<uint64_t, Sending> sending;
  {
    std::lock_guard lock(mutex_);
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    SpreadSequence& sequence = found->second;
    const auto bytes = static_cast<size_t>(sequence.layout().bytes());
    for (size_t i = 0; i < blocks.size(); ++i) {
      const IndexPart* part = sequence.part_of(blocks[i]);
      // Between wanted() and here its indexer may have been lost.
      const Holder* holder = part == nullptr ? nullptr : find(part->holder);
      if (holder == nullptr) continue;
      Sending& send = sending[part->number];
      send.target = holder->where.target;
      send.message.part = part->number;
      send.message.first = part->held;
      send.message.blocks.push_back(blocks[i]);
      const auto key = keys.subspan(i * bytes, bytes);
      send.keys.insert(send.keys.end(), key.begin(), key.end());
    }
    for (auto& [number, send] : sending) send.message.layout = sequence.layout();
  }
  const auto deadline = Clock::now() + options_.append_timeout;
  for (auto& [number, send] : sending) {
    send.message.keys = send.keys;
    const HolderId holder = holder_id(send.target);
    const size_t count = send.message.blocks.size();
    calls_.call(
        send.target, kAppendIndexKeys, serialise(send.message), deadline,
        [self = shared_from_this(), id, part = number, holder, count](const Result<Bytes>& reply) {
          self->appended(id, part, holder, count, reply);
        });
  }
}

void IndexSpread::Impl::appended(IndexSequence id, uint64_t number, HolderId holder, size_t blocks,
                                 const Result<Bytes>& reply) {
  std::vector<Closing> closing;
  {
    std::lock_guard lock(mutex_);
    const auto found = sequences_.find(id);
    IndexPart* part = found == sequences_.end() ? nullptr : found->second.find(number);
    if (reply) {
      stats_.appended_blocks += blocks;
    } else {
      ++stats_.failed_append_calls;
    }
    if (part != nullptr && !part->lost) found->second.sent(*part, reply.has_value());
    const auto at = holders_.find(holder);
    if (part == nullptr || part->lost) {
      // Closed while it was on its way, and perhaps before it came there.
      if (reply) close_part(holder, number, closing);
    } else if (!reply && reply.error().code == Errc::not_found) {
      lose_part(found->second, *part, closing);
    }
    if (!reply && at != holders_.end()) {
      if (reply.error().code == Errc::overloaded) {
        at->second.full_until = Clock::now() + kFullPause;
      } else if (reply.error().code != Errc::not_found) {
        fail_holder(holder, reply.error(), closing);
      }
    }
  }
  tell(closing);
}

void IndexSpread::Impl::close(IndexSequence id) {
  std::vector<Closing> closing;
  {
    std::lock_guard lock(mutex_);
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) return;
    for (IndexPart& part : found->second.parts()) {
      if (!part.lost) lose_part(found->second, part, closing);
    }
    sequences_.erase(found);
  }
  tell(closing);
}

std::unique_ptr<engine::IndexScan> IndexSpread::Impl::scan(
    const engine::IndexQuestions& questions, std::span<const engine::IndexScanRows> entries) {
  auto scan = std::make_unique<SpreadScan>();
  scan->spread = shared_from_this();
  scan->questions = questions;
  scan->blocks.resize(entries.size());
  std::map<HolderId, transport::CallTarget> targets;
  {
    std::lock_guard lock(mutex_);
    for (size_t e = 0; e < entries.size(); ++e) {
      const auto found = sequences_.find(entries[e].sequence);
      if (found == sequences_.end()) continue;
      std::vector<int32_t>& asked = scan->blocks[e];
      for (const IndexPart& part : found->second.parts()) {
        const Holder* holder = find(part.holder);
        if (part.held == 0 || holder == nullptr || holder->failed) continue;
        targets[part.holder] = holder->where.target;
        const auto held = part.held_blocks();
        scan->pieces.push_back(
            {e, part.holder, entries[e].sequence.value, part.number, {held.begin(), held.end()}});
        asked.insert(asked.end(), held.begin(), held.end());
      }
      std::sort(asked.begin(), asked.end());
    }
    scan->calls = plan_scan_calls(questions, entries, scan->pieces, options_.scan_bytes);
    ++stats_.scans;
    stats_.scan_calls += scan->calls.size();
  }
  scan->replies = std::make_shared<Replies>(scan->calls.size());
  const auto deadline = Clock::now() + options_.scan_timeout;
  for (size_t c = 0; c < scan->calls.size(); ++c) {
    const ScanCall& call = scan->calls[c];
    calls_.call(
        targets.at(call.holder), kScanIndexKeys, call.message(questions, scan->pieces), deadline,
        [replies = scan->replies, c](Result<Bytes> reply) { replies->set(c, std::move(reply)); });
  }
  return scan;
}

void IndexSpread::Impl::scanned(std::span<const ScanPiece> pieces, std::span<const ScanCall> calls,
                                std::span<const Result<Bytes>> replies) {
  std::vector<Closing> closing;
  {
    std::lock_guard lock(mutex_);
    for (size_t c = 0; c < calls.size(); ++c) {
      if (replies[c]) continue;
      ++stats_.failed_scan_calls;
      // It answers, and does not know a part: leases end, connections break. Others' parts may be there still.
      if (replies[c].error().code != Errc::not_found) {
        fail_holder(calls[c].holder, replies[c].error(), closing);
        continue;
      }
      for (const ScanCall::Slice& slice : calls[c].slices) {
        const auto found = sequences_.find(IndexSequence(pieces[slice.piece].sequence));
        if (found == sequences_.end()) continue;
        IndexPart* part = found->second.find(pieces[slice.piece].part);
        if (part != nullptr && !part->lost) lose_part(found->second, *part, closing);
      }
    }
  }
  tell(closing);
}

void IndexSpread::Impl::fail_holder(HolderId id, const Error& error,
                                    std::vector<Closing>& closing) {
  const auto found = holders_.find(id);
  if (found == holders_.end() || found->second.failed) return;
  found->second.failed = true;
  log::warn("index", "an indexer failed; its keys are scanned here",
            {{"node", found->second.where.node}, {"error", error.message()}});
  for (auto& [sequence_id, sequence] : sequences_) {
    for (IndexPart& part : sequence.parts()) {
      if (!part.lost && part.holder == id) lose_part(sequence, part, closing);
    }
  }
}

void IndexSpread::Impl::lose_part(SpreadSequence& sequence, IndexPart& part,
                                  std::vector<Closing>& closing) {
  if (!part.blocks.empty()) close_part(part.holder, part.number, closing);
  sequence.lose(part);
}

void IndexSpread::Impl::close_part(HolderId id, uint64_t part, std::vector<Closing>& closing) {
  const auto found = holders_.find(id);
  if (found == holders_.end()) return;  // it ends, or has ended
  if (found->second.failed) {
    found->second.unwanted.push_back(part);
  } else {
    closing.push_back({found->second.where.target, part});
  }
}

void IndexSpread::Impl::tell(const std::vector<Closing>& closing) {
  const auto deadline = Clock::now() + options_.append_timeout;
  for (const Closing& part : closing) {
    calls_.call(part.target, kCloseIndexPart, serialise_close(part.part), deadline,
                [](const Result<Bytes>&) {});
  }
}

IndexSpread::IndexSpread(transport::Calls& calls, const IndexSpreadOptions& options)
    : impl_(std::make_shared<Impl>(calls, options)) {}

IndexSpread::~IndexSpread() = default;

void IndexSpread::set_holders(std::vector<IndexHolder> holders) {
  impl_->set_holders(std::move(holders));
}

IndexSpreadStats IndexSpread::stats() const { return impl_->stats(); }

engine::IndexSequence IndexSpread::open(const engine::IndexBlockLayout& layout) {
  return impl_->open(layout);
}

std::vector<int32_t> IndexSpread::wanted(engine::IndexSequence sequence, int64_t finished) {
  return impl_->wanted(sequence, finished);
}

void IndexSpread::append(engine::IndexSequence sequence, std::vector<int32_t> blocks,
                         std::vector<std::byte> keys) {
  impl_->append(sequence, blocks, keys);
}

void IndexSpread::close(engine::IndexSequence sequence) { impl_->close(sequence); }

std::unique_ptr<engine::IndexScan> IndexSpread::scan(
    const engine::IndexQuestions& questions, std::span<const engine::IndexScanRows> entries) {
  return impl_->scan(questions, entries);
}

std::shared_ptr<void> follow_indexers(const ServiceDirectory& directory,
                                      std::shared_ptr<IndexSpread> spread) {
  const auto tell = [&directory, spread = std::move(spread)] {
    std::vector<IndexHolder> holders;
    for (const ServiceProvider& provider : directory.services(ServiceRole::indexer)) {
      holders.push_back({provider.node, provider.target()});
    }
    spread->set_holders(std::move(holders));
  };
  std::shared_ptr<void> handle = directory.on_change(tell);
  tell();
  return handle;
}

}  // namespace cedar::actors
