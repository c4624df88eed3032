// What a cache has of a prompt: its first blocks, and perhaps the windows behind some of them. Both are fetched at a time;
// the engine goes on when both are here, or it is clear that they will not come.

#include <algorithm>
#include <string>
#include <utility>

#include "actors/encoder_stage.h"
#include "actors/offers.h"
#include "core/log.h"
#include "engine/handoff.h"

namespace cedar::actors {
namespace {

/// The fetch of an attempt's windows must not fail with that of its blocks, so it goes under a number that no attempt has.
constexpr uint32_t kOfWindows = uint32_t{1} << 31;
Attempt of_windows(const Attempt& attempt) {
  return {attempt.handoff, attempt.number | kOfWindows};
}
bool is_of_windows(const Attempt& attempt) { return (attempt.number & kOfWindows) != 0; }
Attempt attempt_of(const Attempt& attempt) {
  return {attempt.handoff, attempt.number & ~kOfWindows};
}

}  // namespace

void EncoderStage::fetch_cached(RequestId id) {
  Work& work = works_.at(id);
  if (work.begin.windows_at > 0) {
    work.waits_for_windows = true;
    if (const Status status = fetch_windows(id, work); !status) {
      fetch_failed(of_windows(work.begin.attempt), status.error());
    }
  }
  if (const Status status = fetch_blocks(id, work); !status) {
    fetch_failed(work.begin.attempt, status.error());
  }
}

Status EncoderStage::fetch_windows(RequestId id, Work& work) {
  CEDAR_TRY(auto descriptor, descriptor_of(work.begin.windows));
  if (descriptor.ranges.size() != 1 ||
      static_cast<int64_t>(descriptor.ranges[0].bytes) > engine_->max_handoff_bytes()) {
    setup_.plane.transport->release(descriptor.owner, descriptor.lease);
    return make_error(Errc::invalid_argument,
                      "windows in " + std::to_string(descriptor.ranges.size()) +
                          " ranges, expected one, of at most " +
                          std::to_string(engine_->max_handoff_bytes()) + " bytes");
  }
  if (descriptor.owner == setup_.plane.transport->identity()) {
    {
      CEDAR_TRY(const auto bytes, setup_.plane.transport->read_in_place(descriptor));
      import_windows(id, work, bytes[0]);
    }
    setup_.plane.transport->release(descriptor.owner, descriptor.lease);
    return {};
  }
  Fetch fetch;
  fetch.attempt = of_windows(work.begin.attempt);
  fetch.owner = work.begin.windows.owner;
  fetch.deadline = std::min(work.deadline, transport::Clock::now() + kCachePatience);
  fetch.source = std::move(descriptor);
  puller_->add(std::move(fetch));
  return {};
}

void EncoderStage::import_windows(RequestId id, Work& work, std::span<const std::byte> bytes) {
  work.waits_for_windows = false;
  Status imported;
  if (auto state = engine::parse_handoff(bytes); state) {
    imported = engine_->import_windows(id, std::move(*state));
  } else {
    imported = state.error();
  }
  work.has_windows = imported.has_value();
  if (!imported) {
    log::warn("encoder", "computes windows that the cache had",
              {{"error", imported.error().message()}});
  }
}

Status EncoderStage::fetch_blocks(RequestId id, Work& work) {
  CEDAR_TRY(auto descriptor, descriptor_of(work.begin.cached));
  const auto count = static_cast<size_t>(work.cached_blocks);
  if (descriptor.ranges.size() < count) {
    return make_error(Errc::invalid_argument, std::to_string(descriptor.ranges.size()) +
                                                  " cached blocks, expected " +
                                                  std::to_string(count));
  }
  descriptor.ranges.resize(count);
  for (const transport::ByteRange& range : descriptor.ranges) {
    if (static_cast<int64_t>(range.bytes) == engine_->block_bytes()) continue;
    return make_error(Errc::invalid_argument, "cached block of " + std::to_string(range.bytes) +
                                                  " bytes, expected " +
                                                  std::to_string(engine_->block_bytes()));
  }
  if (descriptor.owner == setup_.plane.transport->identity()) {
    {
      CEDAR_TRY(const auto bytes, setup_.plane.transport->read_in_place(descriptor));
      for (size_t i = 0; i < count; ++i) {
        CEDAR_CHECK_OK(engine_->import_block(id, static_cast<int64_t>(i), bytes[i]));
      }
    }
    setup_.plane.transport->release(descriptor.owner, descriptor.lease);
    work.cached_here = work.cached_blocks;
    resume_if_all_is_here(id);
    return {};
  }
  Fetch fetch;
  fetch.attempt = work.begin.attempt;
  fetch.owner = work.begin.cached.owner;
  fetch.deadline = std::min(work.deadline, transport::Clock::now() + kCachePatience);
  for (size_t i = 0; i < count; ++i) fetch.blocks.push_back(static_cast<int64_t>(i));
  fetch.source = std::move(descriptor);
  puller_->add(std::move(fetch));
  return {};
}

void EncoderStage::block_arrived(const Attempt& attempt, int64_t index,
                                 std::span<const std::byte> bytes) {
  const auto known = index_.find(attempt);
  if (!known) return;
  const RequestId id = *known;
  Work& work = works_.at(id);
  if (const Status status = engine_->import_block(id, index, bytes); !status) {
    puller_->drop(attempt);
    return fetch_failed(attempt, status.error());
  }
  if (++work.cached_here == work.cached_blocks) resume_if_all_is_here(id);
}

void EncoderStage::state_arrived(const Attempt& attempt, std::span<const std::byte> bytes) {
  const auto known = index_.find(attempt_of(attempt));
  if (!known) return;
  import_windows(*known, works_.at(*known), bytes);
  resume_if_all_is_here(*known);
}

void EncoderStage::fetch_failed(const Attempt& attempt, const Error& error) {
  const auto known = index_.find(attempt_of(attempt));
  if (!known) return;
  const RequestId id = *known;
  Work& work = works_.at(id);
  if (is_of_windows(attempt)) {
    log::info("encoder", "computes windows that the cache had", {{"error", error.message()}});
    work.waits_for_windows = false;
    return resume_if_all_is_here(id);
  }
  log::warn("encoder", "computes what the cache had", {{"error", error.message()}});
  drop_fetches(work);
  resume(id, 0);
}

void EncoderStage::drop_fetches(const Work& work) {
  puller_->drop(work.begin.attempt);
  puller_->drop(of_windows(work.begin.attempt));
}

void EncoderStage::resume_if_all_is_here(RequestId id) {
  const Work& work = works_.at(id);
  if (work.cached_here < work.cached_blocks || work.waits_for_windows) return;
  // Without the windows a replay may have to begin at the prompt's start.
  resume(id, work.has_windows ? work.cached_blocks
                              : engine_->usable_blocks(work.length, work.cached_blocks, 0));
}

void EncoderStage::resume(RequestId id, int64_t blocks) {
  Work& work = works_.at(id);
  if (work.abandoned) return;
  if (const Status status = engine_->resume(id, blocks); !status) return fail(id, status.error());
  work.cached_blocks = work.offered_blocks = blocks;
  setup_.metrics->add(monitoring::MetricId::encoder_cached_blocks, static_cast<double>(blocks));
  if (blocks > 0) {
    // The decoder may fetch them, too, before anything is computed.
    PrefillProgress progress;
    progress.attempt = work.begin.attempt;
    progress.cached_blocks = progress.first_block = blocks;
    send(work.begin.session, std::move(progress));
  }
  schedule_step();
}

}  // namespace cedar::actors
