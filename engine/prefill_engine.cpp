#include "engine/prefill_engine.h"

#include <algorithm>
#include <utility>

#include "engine/prefill_queue.h"
#include "engine/prefill_rank.h"
#include "engine/request_checks.h"

namespace cedar::engine {

struct PrefillEngine::Impl {
  explicit Impl(std::unique_ptr<PrefillRank> r) : rank(std::move(r)), queue(rank->model().config) {}
  std::unique_ptr<PrefillRank> rank;  // all encoder layers
  PrefillQueue queue;
};

PrefillEngine::PrefillEngine() = default;
PrefillEngine::~PrefillEngine() = default;

Result<std::unique_ptr<PrefillEngine>> PrefillEngine::create(
    std::shared_ptr<const LoadedModel> model, std::shared_ptr<EngramSource> engram,
    const EngineOptions& options) {
  CEDAR_TRY(auto rank, PrefillRank::create(std::move(model), std::move(engram), options));
  if (!rank->first() || !rank->last()) {
    return make_error(Errc::invalid_argument, "a prefill engine needs all encoder layers");
  }
  std::unique_ptr<PrefillEngine> engine(new PrefillEngine());
  engine->impl_ = std::make_unique<Impl>(std::move(rank));
  return engine;
}

Status PrefillEngine::submit(PrefillRequest request) {
  CEDAR_CHECK_OK(check_prompt(model().config, request.tokens));
  CEDAR_CHECK_OK(impl_->rank->open(request.id, static_cast<Position>(request.tokens.size()),
                                   request.cached_blocks, request.keep_windows));
  const bool is_next = impl_->queue.idle();
  const Position stop = impl_->rank->keeps_at(request.id);
  impl_->queue.add(std::move(request), stop);
  // Behind others its turn may be far away.
  if (is_next)
    impl_->rank->prefetch(impl_->queue.peek(impl_->rank->options().prefill_chunk_tokens));
  return {};
}

bool PrefillEngine::idle() const { return impl_->queue.idle(); }

int64_t PrefillEngine::usable_blocks(Position length, int64_t cached_blocks,
                                     Position windows_at) const {
  const int64_t block = model().layout.block_tokens;
  const int64_t blocks = std::min(cached_blocks, (length - 1) / block);
  const ResumePoint entry =
      resume_point(model(), impl_->rank->options(), blocks * block, length, 0, windows_at);
  return entry.start > 0 ? blocks : 0;
}

Status PrefillEngine::import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) {
  return impl_->rank->import_block(id, index, bytes);
}

Status PrefillEngine::import_windows(RequestId id, Handoff state) {
  return impl_->rank->import_windows(id, std::move(state));
}

Status PrefillEngine::resume(RequestId id, int64_t blocks) {
  CEDAR_TRY(const ResumePoint entry, impl_->rank->resume(id, blocks));
  impl_->queue.resume(id, entry.start, impl_->rank->keeps_at(id));
  return {};
}

Result<std::vector<PrefillEvent>> PrefillEngine::step() {
  std::vector<PrefillEvent> events;
  PrefillRank& rank = *impl_->rank;
  const PrefillQueue::Next next = impl_->queue.next(rank.options().prefill_chunk_tokens);
  if (next.chunk.parts.empty()) return events;
  // Both layers' rows of this chunk, as far as they are not on their way, and those of the next one, which travel while
  // this one is computed.
  rank.prefetch(next.chunk);
  rank.prefetch(impl_->queue.peek(rank.options().prefill_chunk_tokens));
  CEDAR_CHECK_OK(rank.run(next.chunk, next.images, {}, {}));
  for (const PrefillRows& part : next.chunk.parts) {
    PrefillEvent& event = events.emplace_back();
    event.id = part.id;
    event.rows = part.rows();
    const ResumePoint& entry = rank.entry(part.id);
    event.cached = entry.cached;
    event.resume = entry.kind;
    event.replayed = std::max<int64_t>(0, std::min(part.end(), entry.cached) - entry.start);
    event.computed = std::max(part.end(), event.cached);
    event.windows_at = rank.kept_state_at(part.id);
    event.blocks_ready = rank.blocks_ready(part.id);
    event.finished = part.finishes();
  }
  return events;
}

std::span<const std::byte> PrefillEngine::block(RequestId id, int64_t index) const {
  return impl_->rank->block(id, index);
}

Result<Handoff> PrefillEngine::take_handoff(RequestId id) { return impl_->rank->take_handoff(id); }
Result<Handoff> PrefillEngine::take_windows(RequestId id) { return impl_->rank->take_windows(id); }

void PrefillEngine::release(RequestId id) {
  impl_->queue.remove(id);
  impl_->rank->release(id);
}

int64_t PrefillEngine::max_handoff_bytes() const { return impl_->rank->max_handoff_bytes(); }

PrefillLoad PrefillEngine::load() const {
  return {impl_->queue.rows_left(), impl_->queue.prompts(), impl_->rank->free_blocks()};
}

const LoadedModel& PrefillEngine::model() const { return impl_->rank->model(); }

}  // namespace cedar::engine
