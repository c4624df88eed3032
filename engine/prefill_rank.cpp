#include "engine/prefill_rank.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "engine/boundary_rows.h"
#include "engine/engram_rows.h"
#include "engine/forward.h"
#include "engine/layer_cut.h"
#include "engine/request_checks.h"
#include "engine/runtime.h"
#include "engine/sharded_keys.h"
#include "engine/stored_state.h"
#include "engine/upload.h"

namespace cedar::engine {
namespace {

struct Prefill {
  Position length = 0;
  SequenceSlot slot;
  bool waits_for_blocks = false;
  std::vector<bool> imported;  // per cached block
  Handoff imported_state;      // of an earlier turn; until resume()
  ResumePoint entry;
  Position window_floor = 0;  // no window row lies before it
  Position computed = 0;      // the next row
  BoundaryRows boundary;      // of the last rank
  int64_t shown_blocks = 0;   // copied to the mirror
  Handoff state;              // of the prompt that has been read, but for its boundary rows
  Position kept_at = 0;       // where a state is kept for the next turn; 0: nowhere
  Handoff kept_state;         // once the prompt has been read so far, until it is taken

  bool finished() const { return computed == length; }
};

}  // namespace

struct PrefillRank::Impl {
  std::shared_ptr<const LoadedModel> model;
  std::shared_ptr<EngramSource> engram;
  EngineOptions options;
  Runtime runtime;
  SequenceStore store;
  model::LayerRange range;
  LayerCut before, behind;
  std::optional<ShardedKeys> sharded;  // set once the store has its place
  Buffer mirror;  // of the pool's pages, where the host cannot read the device's
  std::map<RequestId, Prefill> prompts;

  Impl(std::shared_ptr<const LoadedModel> m, std::shared_ptr<EngramSource> e,
       const EngineOptions& o, SequenceStore s, model::LayerRange r)
      : model(std::move(m)),
        engram(std::move(e)),
        options(o),
        runtime(o),
        store(std::move(s)),
        range(r),
        before(*model, r.first, model->plan.boundary),
        behind(*model, r.last, model->plan.boundary) {}

  bool first() const { return range.first == 0; }
  bool last() const { return range.last == model->plan.boundary; }
  Status check(const PrefillChunk& chunk) const;
  /// Errors: not_found, invalid_argument (it does not wait for cached blocks).
  Result<Prefill*> waiting(RequestId id);
  Result<StreamState> enter(Forward& forward, const StepBatch& batch, const ChunkImages& images,
                            SharedAttention& shared, std::span<const CutState> states,
                            std::span<const std::byte> in);
  Status keep_state(Prefill& prefill);
  Status enter_with_windows(Prefill& prefill);
  StoredLayers stored() { return {*model, store, runtime.context(), range}; }
  Status show_blocks(Prefill& prefill);
  int64_t blocks_ready(const Prefill& prefill) const {
    return prefill.finished()
               ? store.blocks_for(prefill.length)
               : std::max(prefill.computed, prefill.entry.cached) / model->layout.block_tokens;
  }
  bool on_host() const { return model->device.kind == DeviceKind::cpu; }
  /// Device to host, once everything queued before is done.
  Status fetch(void* to, const void* from, int64_t bytes) {
    const kernels::KernelContext& ctx = runtime.context();
    return copy_to_host(ctx.device, to, from, bytes, ctx.cuda_stream);
  }
};

PrefillRank::PrefillRank() = default;
PrefillRank::~PrefillRank() = default;

Result<std::unique_ptr<PrefillRank>> PrefillRank::create(std::shared_ptr<const LoadedModel> model,
                                                         std::shared_ptr<EngramSource> engram,
                                                         const EngineOptions& options) {
  CEDAR_TRY(const EngineOptions complete, complete_options(options, *model));
  const model::LayerRange range{model->range.first,
                                std::min(model->range.last, model->plan.boundary)};
  if (range.first >= range.last) {
    return make_error(Errc::invalid_argument, "the weights hold no encoder layer, but " +
                                                  std::to_string(model->range.first) + "-" +
                                                  std::to_string(model->range.last - 1));
  }
  const bool on_host = model->device.kind == DeviceKind::cpu;
  HostMemorySource* const memory = complete.block_memory.get();
  CEDAR_TRY(SequenceStore store,
            SequenceStore::create(*model, range.first, range.last, 0, complete.kv_pool_blocks,
                                  complete.max_sequences, on_host ? memory : nullptr));
  Buffer mirror;
  if (!on_host && range.last == model->plan.boundary) {
    const int64_t bytes = store.pool().total() * store.pool().block_bytes();
    CEDAR_TRY(mirror,
              memory != nullptr ? memory->allocate(bytes) : Buffer::allocate(Device{}, bytes));
  }
  std::unique_ptr<PrefillRank> rank(new PrefillRank());
  rank->impl_ = std::make_unique<Impl>(std::move(model), std::move(engram), complete,
                                       std::move(store), range);
  Impl& impl = *rank->impl_;
  impl.mirror = std::move(mirror);
  CEDAR_TRY(ShardedKeys sharded,
            ShardedKeys::create(*impl.model, impl.store, range.last, impl.options));
  impl.sharded.emplace(std::move(sharded));
  return rank;
}

bool PrefillRank::first() const { return impl_->first(); }
bool PrefillRank::last() const { return impl_->last(); }

Status PrefillRank::open(RequestId id, Position length, int64_t cached_blocks, bool keep_windows) {
  Impl& impl = *impl_;
  if (impl.prompts.contains(id)) {
    return make_error(Errc::invalid_argument,
                      "request " + std::to_string(id.value) + " is already queued");
  }
  const int64_t blocks = impl.store.blocks_for(length);
  CEDAR_CHECK_OK(check_capacity(impl.options, impl.store, length, blocks));
  if (cached_blocks < 0 || cached_blocks * impl.model->layout.block_tokens >= length) {
    return make_error(Errc::invalid_argument, std::to_string(cached_blocks) +
                                                  " cached blocks leave nothing to compute of " +
                                                  std::to_string(length) + " tokens");
  }
  Prefill prefill;
  prefill.imported.assign(static_cast<size_t>(cached_blocks), false);
  prefill.waits_for_blocks = cached_blocks > 0;
  prefill.length = length;
  CEDAR_TRY(prefill.slot, impl.store.acquire(blocks));
  if (keep_windows && impl.first() && impl.last()) {
    prefill.kept_at = windows_position(*impl.model, length);
  }
  if (impl.last()) {
    const Position begin =
        first_boundary_row(*impl.model, impl.options.replay, length, prefill.kept_at);
    auto boundary = BoundaryRows::create(*impl.model, begin, length);
    if (!boundary) {
      impl.store.release(prefill.slot);
      return boundary.error();
    }
    prefill.boundary = std::move(*boundary);
  }
  impl.prompts.emplace(id, std::move(prefill));
  return {};
}

Status PrefillRank::import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) {
  Impl& impl = *impl_;
  CEDAR_TRY(Prefill* const prefill, impl.waiting(id));
  const int64_t block_bytes = impl.store.pool().block_bytes();
  if (index < 0 || index >= static_cast<int64_t>(prefill->imported.size()) ||
      static_cast<int64_t>(bytes.size()) != block_bytes) {
    return make_error(Errc::invalid_argument, "cached block " + std::to_string(index) + " of " +
                                                  std::to_string(prefill->imported.size()) + ", " +
                                                  std::to_string(bytes.size()) + " bytes of " +
                                                  std::to_string(block_bytes));
  }
  const BlockId page = impl.store.pages(prefill->slot)[static_cast<size_t>(index)];
  const kernels::KernelContext& ctx = impl.runtime.context();
  CEDAR_CHECK_OK(copy_to_device(ctx.device, impl.store.pool().data(page), bytes.data(), block_bytes,
                                ctx.cuda_stream));
  if (!impl.on_host()) {
    std::memcpy(impl.mirror.data() + page.value * block_bytes, bytes.data(), bytes.size());
  }
  prefill->imported[static_cast<size_t>(index)] = true;
  return {};
}

Status PrefillRank::import_windows(RequestId id, Handoff state) {
  Impl& impl = *impl_;
  CEDAR_TRY(Prefill* const prefill, impl.waiting(id));
  const int64_t block = impl.model->layout.block_tokens;
  const Position cached = static_cast<int64_t>(prefill->imported.size()) * block;
  if (state.length < block || state.length > cached || state.length % block != 0) {
    return make_error(Errc::invalid_argument,
                      "windows at " + std::to_string(state.length) + ": expected a multiple of " +
                          std::to_string(block) + ", at most " + std::to_string(cached));
  }
  CEDAR_CHECK_OK(check_handoff(*impl.model, impl.options.replay, state.length, state));
  prefill->imported_state = std::move(state);
  return {};
}

Result<ResumePoint> PrefillRank::resume(RequestId id, int64_t blocks) {
  Impl& impl = *impl_;
  CEDAR_TRY(Prefill* const prefill, impl.waiting(id));
  const auto here = std::find(prefill->imported.begin(), prefill->imported.end(), false);
  if (blocks < 0 || blocks > here - prefill->imported.begin()) {
    return make_error(Errc::invalid_argument,
                      "resume behind " + std::to_string(blocks) + " blocks, " +
                          std::to_string(here - prefill->imported.begin()) + " were imported");
  }
  const Position cached = blocks * impl.model->layout.block_tokens;
  if (prefill->kept_at <= cached) prefill->kept_at = 0;
  prefill->entry = resume_point(*impl.model, impl.options, cached, prefill->length,
                                prefill->kept_at, prefill->imported_state.length);
  prefill->window_floor = prefill->computed = prefill->entry.start;
  if (prefill->entry.kind == ResumeKind::windows) CEDAR_CHECK_OK(impl.enter_with_windows(*prefill));
  prefill->imported_state = Handoff();
  prefill->shown_blocks = blocks;
  prefill->waits_for_blocks = false;
  return prefill->entry;
}

Result<Prefill*> PrefillRank::Impl::waiting(RequestId id) {
  const auto found = prompts.find(id);
  if (found == prompts.end()) {
    return make_error(Errc::not_found, "request " + std::to_string(id.value));
  }
  if (!found->second.waits_for_blocks) {
    return make_error(Errc::invalid_argument,
                      "request " + std::to_string(id.value) + " does not wait for cached blocks");
  }
  return &found->second;
}

std::vector<RequestId> PrefillRank::prompts() const {
  std::vector<RequestId> ids;
  for (const auto& [id, prefill] : impl_->prompts) ids.push_back(id);
  return ids;
}

void PrefillRank::release(RequestId id) {
  const auto found = impl_->prompts.find(id);
  if (found == impl_->prompts.end()) return;
  impl_->sharded->close(found->second.slot);
  impl_->store.release(found->second.slot);
  impl_->prompts.erase(found);
}

/// Whether the rows may come now: they may be another process's word.
Status PrefillRank::Impl::check(const PrefillChunk& chunk) const {
  const auto bad = [](const PrefillRows& part, const char* what, int64_t expected, int64_t got) {
    return make_error(Errc::invalid_argument, "rows of request " + std::to_string(part.id.value) +
                                                  ": " + what + ": expected " +
                                                  std::to_string(expected) + ", got " +
                                                  std::to_string(got));
  };
  for (size_t i = 0; i < chunk.parts.size(); ++i) {
    const PrefillRows& part = chunk.parts[i];
    const auto found = prompts.find(part.id);
    const Position start = found == prompts.end() ? 0 : found->second.computed;
    const Position length = found == prompts.end() ? part.length : found->second.length;
    if (part.start != start) return bad(part, "start", start, part.start);
    if (part.length != length) return bad(part, "length", length, part.length);
    if (part.rows() < 1 || part.end() > length)
      return bad(part, "rows", length - start, part.rows());
    CEDAR_CHECK_OK(check_prompt(model->config, part.tokens));
    for (size_t other = 0; other < i; ++other) {
      if (chunk.parts[other].id == part.id) return bad(part, "parts in one chunk", 1, 2);
    }
    const int64_t look_back = ngram_look_back(model->config, part.start);
    if (static_cast<int64_t>(part.history.size()) != look_back) {
      return bad(part, "history", look_back, static_cast<int64_t>(part.history.size()));
    }
    if (!part.history.empty()) CEDAR_CHECK_OK(check_prompt(model->config, part.history));
  }
  return {};
}

Result<StreamState> PrefillRank::Impl::enter(Forward& forward, const StepBatch& batch,
                                             const ChunkImages& images, SharedAttention& shared,
                                             std::span<const CutState> states,
                                             std::span<const std::byte> in) {
  kernels::KernelContext& ctx = runtime.context();
  if (!first()) return before.read(ctx, store, forward, batch, shared, states, in);
  if (images.rows.empty()) return forward.embed(batch);
  return forward.embed(batch, upload(ctx, images.override_index), upload(ctx, images.rows));
}

Result<int64_t> PrefillRank::run(const PrefillChunk& chunk, const ChunkImages& images,
                                 std::span<const std::byte> in, std::span<std::byte> out) {
  Impl& impl = *impl_;
  CEDAR_CHECK_OK(impl.check(chunk));
  impl.runtime.begin_step();
  kernels::KernelContext& ctx = impl.runtime.context();
  std::vector<BatchSequence> sequences;
  std::vector<Prefill*> prefills;
  std::vector<CutState> states;
  for (const PrefillRows& part : chunk.parts) {
    if (!impl.prompts.contains(part.id)) CEDAR_CHECK_OK(open(part.id, part.length));
    Prefill& prefill = impl.prompts.at(part.id);
    if (part.finishes()) {
      CEDAR_TRY(prefill.state, allocate_state(*impl.model, prefill.length));
    }
    impl.sharded->finished(prefill.slot, prefill.length,
                           prefill.computed / impl.model->layout.block_tokens);
    prefills.push_back(&prefill);
    states.push_back(part.finishes() ? CutState{&prefill.state.windows, &prefill.state.pending}
                                     : CutState{});
    BatchSequence& sequence = sequences.emplace_back();
    sequence.slot = prefill.slot;
    sequence.start = part.start;
    sequence.tokens = part.tokens;
    sequence.history = part.history;
    sequence.window_floor = prefill.window_floor;
    sequence.write_floor = prefill.entry.cached;
  }
  const StepBatch batch = make_step_batch(ctx, *impl.model, impl.store, std::move(sequences));
  Forward forward(*impl.model, impl.store, *impl.engram, impl.options.numeric, ctx, nullptr,
                  &*impl.sharded);
  SharedAttention shared;
  CEDAR_TRY(StreamState state, impl.enter(forward, batch, images, shared, states, in));
  CEDAR_CHECK_OK(forward.run_layers(impl.range.first, impl.range.last, batch, shared, state));
  if (impl.last()) CEDAR_CHECK_OK(forward.project_boundary(batch, state));

  for (size_t i = 0; i < prefills.size(); ++i) {
    Prefill& prefill = *prefills[i];
    const Position end = chunk.parts[i].end();
    if (impl.last()) {
      CEDAR_CHECK_OK(
          prefill.boundary.keep(ctx, state, batch.row_begin[i], chunk.parts[i].start, end));
    }
    prefill.computed = end;
    if (prefill.finished()) {
      CEDAR_CHECK_OK(fetch_state(impl.stored(), prefill.slot, prefill.state));
    }
    if (prefill.computed == prefill.kept_at) CEDAR_CHECK_OK(impl.keep_state(prefill));
    if (impl.last()) CEDAR_CHECK_OK(impl.show_blocks(prefill));
    if (prefill.finished()) impl.sharded->close(prefill.slot);
  }
  if (impl.last()) return int64_t{0};
  const int64_t bytes = impl.behind.bytes(batch, states);
  if (bytes > static_cast<int64_t>(out.size())) {
    return make_error(
        Errc::internal,
        std::to_string(bytes) + " bytes for the next rank, room for " + std::to_string(out.size()));
  }
  CEDAR_CHECK_OK(impl.behind.write(ctx, impl.store, batch, shared, state, states,
                                   out.first(static_cast<size_t>(bytes))));
  for (const CutState& sent : states) {
    if (sent.windows == nullptr) continue;
    *sent.windows = Buffer();
    *sent.pending = Buffer();
  }
  return bytes;
}

void PrefillRank::prefetch(const PrefillChunk& chunk) {
  if (!impl_->engram->wants_prefetch()) return;
  std::vector<BatchSequence> sequences;
  for (const PrefillRows& part : chunk.parts) {
    // It may be another process's word; run() says what is wrong.
    const model::ModelConfig& config = impl_->model->config;
    if (!check_prompt(config, part.tokens)) return;
    if (!part.history.empty() && !check_prompt(config, part.history)) return;
    BatchSequence& sequence = sequences.emplace_back();
    sequence.start = part.start;
    sequence.tokens = part.tokens;
    sequence.history = part.history;
  }
  prefetch_engram(*impl_->model, impl_->range, sequences, *impl_->engram);
}

int64_t PrefillRank::max_in_bytes() const {
  const Impl& impl = *impl_;
  const int64_t rows = impl.options.prefill_chunk_tokens;
  return impl.first()
             ? 0
             : impl.before.max_bytes(impl.options, rows,
                                     std::min<int64_t>(rows, impl.options.max_sequences), true);
}

int64_t PrefillRank::max_out_bytes() const {
  const Impl& impl = *impl_;
  const int64_t rows = impl.options.prefill_chunk_tokens;
  return impl.last()
             ? 0
             : impl.behind.max_bytes(impl.options, rows,
                                     std::min<int64_t>(rows, impl.options.max_sequences), true);
}

Status PrefillRank::Impl::show_blocks(Prefill& prefill) {
  if (on_host()) return {};
  const auto pages = store.pages(prefill.slot);
  const int64_t bytes = store.pool().block_bytes();
  const int64_t ready = blocks_ready(prefill);
  for (int64_t& i = prefill.shown_blocks; i < ready; ++i) {
    const BlockId page = pages[static_cast<size_t>(i)];
    CEDAR_CHECK_OK(fetch(mirror.data() + page.value * bytes, store.pool().data(page), bytes));
  }
  return {};
}

Status PrefillRank::Impl::keep_state(Prefill& prefill) {
  const Position end = prefill.kept_at;
  CEDAR_TRY(Handoff state, allocate_state(*model, end));
  CEDAR_CHECK_OK(fetch_state(stored(), prefill.slot, state));
  CEDAR_CHECK_OK(prefill.boundary.fetch(runtime.context(), end,
                                        replay_rows(*model, options.replay, end), state));
  prefill.kept_state = std::move(state);
  return {};
}

Status PrefillRank::Impl::enter_with_windows(Prefill& prefill) {
  const Handoff& state = prefill.imported_state;
  prefill.window_floor = state.length - state.window_rows;
  CEDAR_CHECK_OK(place_state(stored(), prefill.slot, state));
  CEDAR_CHECK_OK(prefill.boundary.place(runtime.context(), state));
  // The state goes now; copies from pinned memory are only queued.
  return synchronize(model->device, runtime.context().cuda_stream);
}

int64_t PrefillRank::blocks_ready(RequestId id) const {
  return impl_->blocks_ready(impl_->prompts.at(id));
}

const ResumePoint& PrefillRank::entry(RequestId id) const { return impl_->prompts.at(id).entry; }

Position PrefillRank::keeps_at(RequestId id) const { return impl_->prompts.at(id).kept_at; }

Position PrefillRank::kept_state_at(RequestId id) const {
  return impl_->prompts.at(id).kept_state.length;
}

std::span<const std::byte> PrefillRank::block(RequestId id, int64_t index) const {
  const auto found = impl_->prompts.find(id);
  CEDAR_ASSERT(found != impl_->prompts.end(), std::to_string(id.value));
  CEDAR_ASSERT(impl_->last(), "only the last rank has whole blocks");
  const auto pages = impl_->store.pages(found->second.slot);
  CEDAR_ASSERT(index >= 0 && index < static_cast<int64_t>(pages.size()), std::to_string(index));
  const int64_t bytes = impl_->store.pool().block_bytes();
  const BlockId page = pages[static_cast<size_t>(index)];
  const std::byte* data =
      impl_->on_host() ? impl_->store.pool().data(page) : impl_->mirror.data() + page.value * bytes;
  return {data, static_cast<size_t>(bytes)};
}

Result<Handoff> PrefillRank::take_handoff(RequestId id) {
  const auto found = impl_->prompts.find(id);
  CEDAR_ASSERT(impl_->last() && found != impl_->prompts.end() && found->second.finished(),
               std::to_string(id.value));
  Prefill& prefill = found->second;
  Handoff handoff = std::exchange(prefill.state, Handoff());
  CEDAR_CHECK_OK(prefill.boundary.fetch(
      impl_->runtime.context(), prefill.length,
      replay_rows(*impl_->model, impl_->options.replay, prefill.length), handoff));
  prefill.boundary = BoundaryRows();
  return handoff;
}

Result<Handoff> PrefillRank::take_windows(RequestId id) {
  const auto found = impl_->prompts.find(id);
  if (found == impl_->prompts.end() || found->second.kept_state.length == 0) {
    return make_error(Errc::not_found,
                      "request " + std::to_string(id.value) + " has no windows to take");
  }
  return std::exchange(found->second.kept_state, Handoff());
}

int64_t PrefillRank::max_handoff_bytes() const {
  return cedar::engine::max_handoff_bytes(*impl_->model, impl_->options);
}

int64_t PrefillRank::free_blocks() const { return impl_->store.pool().free(); }
int64_t PrefillRank::total_blocks() const { return impl_->store.pool().total(); }
const EngineOptions& PrefillRank::options() const { return impl_->options; }
const LoadedModel& PrefillRank::model() const { return *impl_->model; }

}  // namespace cedar::engine
