#include "engine/prefill_rank.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "engine/engram_rows.h"
#include "engine/forward.h"
#include "engine/layer_cut.h"
#include "engine/prefill_engine.h"
#include "engine/request_checks.h"
#include "engine/ring_runs.h"
#include "engine/runtime.h"
#include "engine/sharded_keys.h"
#include "engine/upload.h"

namespace cedar::engine {
namespace {

struct Prefill {
  Position length = 0;
  SequenceSlot slot;
  bool waits_for_blocks = false;
  std::vector<bool> imported;  // per cached block
  Position cached = 0;         // tokens whose global rows were imported: the write floor
  Position start = 0;          // of the replay: no window row lies before it
  Position computed = 0;       // the next row
  // The last rows of the encoder's output, on the device. Of the last rank.
  Buffer boundary_x, boundary_pre;
  int64_t boundary_rows = 0;
  int64_t shown_blocks = 0;  // copied to the mirror
  Buffer windows, pending;   // of a prompt that has been read, as engine/handoff.h has them

  bool finished() const { return computed == length; }
  int64_t window_rows(const LoadedModel& model) const {
    return std::min<int64_t>(model.config.sliding_window, length);
  }
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
  Status reserve_state(Prefill& prefill) const;
  Status collect_windows(Prefill& prefill);
  Status collect_pending(Prefill& prefill);
  Status keep_boundary(Prefill& prefill, const StreamState& state, int64_t row_begin, int64_t rows);
  Status show_blocks(Prefill& prefill);
  int64_t blocks_ready(const Prefill& prefill) const {
    return prefill.finished()
               ? store.blocks_for(prefill.length)
               : std::max(prefill.computed, prefill.cached) / model->layout.block_tokens;
  }
  bool on_host() const { return model->device.kind == DeviceKind::cpu; }
  /// Device to host, once everything queued before is done.
  Status fetch(void* to, const void* from, int64_t bytes) {
    const kernels::KernelContext& ctx = runtime.context();
    return copy_to_host(ctx.device, to, from, bytes, ctx.cuda_stream);
  }
  Result<Buffer> fetch(Buffer buffer);
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

Status PrefillRank::open(RequestId id, Position length, int64_t cached_blocks) {
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
  if (impl.last()) {
    prefill.boundary_rows = replay_rows(*impl.model, impl.options.replay, length);
    const int64_t copies = impl.model->config.hc_mult;
    const int64_t x_bytes =
        prefill.boundary_rows * copies * impl.model->config.hidden_size * int64_t{2};
    auto x = Buffer::allocate(impl.model->device, x_bytes);
    auto pre = Buffer::allocate(impl.model->device, prefill.boundary_rows * copies * int64_t{4});
    if (!x || !pre) {
      impl.store.release(prefill.slot);
      return !x ? x.error() : pre.error();
    }
    prefill.boundary_x = std::move(*x);
    prefill.boundary_pre = std::move(*pre);
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

Result<Position> PrefillRank::resume(RequestId id, int64_t blocks) {
  CEDAR_TRY(Prefill* const prefill, impl_->waiting(id));
  const auto here = std::find(prefill->imported.begin(), prefill->imported.end(), false);
  if (blocks < 0 || blocks > here - prefill->imported.begin()) {
    return make_error(Errc::invalid_argument,
                      "resume behind " + std::to_string(blocks) + " blocks, " +
                          std::to_string(here - prefill->imported.begin()) + " were imported");
  }
  prefill->cached = blocks * impl_->model->layout.block_tokens;
  prefill->start = resume_start(*impl_->model, impl_->options, prefill->cached, prefill->length);
  prefill->computed = prefill->start;
  prefill->shown_blocks = blocks;
  prefill->waits_for_blocks = false;
  return prefill->start;
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
    if (part.finishes()) CEDAR_CHECK_OK(impl.reserve_state(prefill));
    impl.sharded->finished(prefill.slot, prefill.length,
                           prefill.computed / impl.model->layout.block_tokens);
    prefills.push_back(&prefill);
    states.push_back(part.finishes() ? CutState{&prefill.windows, &prefill.pending} : CutState{});
    BatchSequence& sequence = sequences.emplace_back();
    sequence.slot = prefill.slot;
    sequence.start = part.start;
    sequence.tokens = part.tokens;
    sequence.history = part.history;
    sequence.window_floor = prefill.start;
    sequence.write_floor = prefill.cached;
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
    const int64_t rows = chunk.parts[i].rows();
    if (impl.last()) CEDAR_CHECK_OK(impl.keep_boundary(prefill, state, batch.row_begin[i], rows));
    prefill.computed += rows;
    if (prefill.finished()) {
      CEDAR_CHECK_OK(impl.collect_windows(prefill));
      CEDAR_CHECK_OK(impl.collect_pending(prefill));
    }
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

Status PrefillRank::Impl::keep_boundary(Prefill& prefill, const StreamState& state,
                                        int64_t row_begin, int64_t rows) {
  const Position first_kept = prefill.length - prefill.boundary_rows;
  const Position begin = std::max(first_kept, prefill.computed);
  const Position end = prefill.computed + rows;
  if (begin >= end) return {};
  const int64_t source = row_begin + begin - prefill.computed;
  const int64_t target = begin - first_kept;
  const int64_t copies = model->config.hc_mult;
  const int64_t x_row = copies * model->config.hidden_size;
  const kernels::KernelContext& ctx = runtime.context();
  CEDAR_CHECK_OK(copy_on_device(ctx.device, prefill.boundary_x.as<Bf16>() + target * x_row,
                                state.x + source * x_row, (end - begin) * x_row * int64_t{2},
                                ctx.cuda_stream));
  return copy_on_device(ctx.device, prefill.boundary_pre.as<float>() + target * copies,
                        state.pre + source * copies, (end - begin) * copies * int64_t{4},
                        ctx.cuda_stream);
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

Result<Buffer> PrefillRank::Impl::fetch(Buffer buffer) {
  if (on_host()) return buffer;
  CEDAR_TRY(Buffer host, Buffer::allocate(Device{}, buffer.bytes()));
  CEDAR_CHECK_OK(fetch(host.data(), buffer.data(), buffer.bytes()));
  return host;
}

Status PrefillRank::Impl::reserve_state(Prefill& prefill) const {
  const int64_t windows =
      model->plan.boundary * prefill.window_rows(*model) * model->layout.window_row_bytes;
  CEDAR_TRY(prefill.windows, Buffer::allocate(Device{}, windows));
  const int64_t pending = pending_bytes(*model, prefill.length);
  if (pending > 0) {
    CEDAR_TRY(prefill.pending, Buffer::allocate(Device{}, pending));
  }
  return {};
}

Status PrefillRank::Impl::collect_windows(Prefill& prefill) {
  const int64_t rows = prefill.window_rows(*model);
  const int64_t layer_bytes = rows * model->layout.window_row_bytes;
  for (LayerId layer = range.first; layer < range.last; ++layer) {
    std::byte* out = prefill.windows.data() + layer * layer_bytes;
    CEDAR_CHECK_OK(for_each_ring_run(store.rings(layer), prefill.slot.value, prefill.length - rows,
                                     prefill.length,
                                     [&](const uint8_t* ring, int64_t offset, int64_t bytes) {
                                       return fetch(out + offset, ring, bytes);
                                     }));
  }
  return {};
}

Status PrefillRank::Impl::collect_pending(Prefill& prefill) {
  if (prefill.pending.bytes() == 0) return {};
  float* out = prefill.pending.as<float>();
  for (size_t i = 0; i < model->plan.kv_sources.size(); ++i) {
    const model::KvSource& source = model->plan.kv_sources[i];
    const int64_t count = (source.ratio - 1) * model->config.head_dim;
    if (count > 0 && range.contains(source.layer)) {
      const auto index = static_cast<int64_t>(i);
      const int64_t offset = prefill.slot.value * count;
      CEDAR_CHECK_OK(fetch(out, store.pending_kv(index) + offset, count * int64_t{4}));
      CEDAR_CHECK_OK(fetch(out + count, store.pending_gate(index) + offset, count * int64_t{4}));
    }
    out += 2 * count;
  }
  return {};
}

int64_t PrefillRank::blocks_ready(RequestId id) const {
  return impl_->blocks_ready(impl_->prompts.at(id));
}

Position PrefillRank::cached(RequestId id) const { return impl_->prompts.at(id).cached; }

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
  Handoff handoff;
  handoff.length = prefill.length;
  handoff.window_rows = prefill.window_rows(*impl_->model);
  handoff.windows = std::move(prefill.windows);
  handoff.pending = std::move(prefill.pending);
  CEDAR_TRY(handoff.boundary_x, impl_->fetch(std::move(prefill.boundary_x)));
  CEDAR_TRY(handoff.boundary_pre, impl_->fetch(std::move(prefill.boundary_pre)));
  handoff.boundary_rows = prefill.boundary_rows;
  return handoff;
}

int64_t PrefillRank::max_handoff_bytes() const {
  return cedar::engine::max_handoff_bytes(*impl_->model, impl_->options);
}

int64_t PrefillRank::free_blocks() const { return impl_->store.pool().free(); }
int64_t PrefillRank::total_blocks() const { return impl_->store.pool().total(); }
const EngineOptions& PrefillRank::options() const { return impl_->options; }
const LoadedModel& PrefillRank::model() const { return *impl_->model; }

}  // namespace cedar::engine
