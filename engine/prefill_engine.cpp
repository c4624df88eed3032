#include "engine/prefill_engine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "engine/forward.h"
#include "engine/request_checks.h"
#include "engine/ring_runs.h"
#include "engine/runtime.h"
#include "engine/sharded_keys.h"
#include "engine/upload.h"

namespace cedar::engine {
namespace {

/// A request that has waited this many steps goes before shorter ones.
constexpr int32_t kAgeLimitSteps = 32;

struct Prefill {
  PrefillRequest request;
  SequenceSlot slot;
  bool waits_for_blocks = false;
  std::vector<bool> imported;       // per cached block
  Position cached = 0;              // tokens whose global rows were imported: the write floor
  Position start = 0;               // of the replay: no window row lies before it
  Position computed = 0;            // the next row
  int32_t waited = 0;               // steps without a row
  Buffer boundary_x, boundary_pre;  // of the device
  int64_t boundary_rows = 0;
  int64_t shown_blocks = 0;  // copied to the mirror

  Position length() const { return static_cast<Position>(request.tokens.size()); }
  bool finished() const { return computed == length(); }
  bool can_go_on() const { return !finished() && !waits_for_blocks; }
};

}  // namespace

struct PrefillEngine::Impl {
  std::shared_ptr<const LoadedModel> model;
  std::shared_ptr<EngramSource> engram;
  EngineOptions options;
  Runtime runtime;
  SequenceStore store;
  std::optional<ShardedKeys> sharded;  // set once the store has its place
  Buffer mirror;  // of the pool's pages, where the host cannot read the device's
  std::map<RequestId, Prefill> requests;

  Impl(std::shared_ptr<const LoadedModel> m, std::shared_ptr<EngramSource> e,
       const EngineOptions& o, SequenceStore s)
      : model(std::move(m)), engram(std::move(e)), options(o), runtime(o), store(std::move(s)) {}

  /// Errors: not_found, invalid_argument (it does not wait for cached blocks).
  Result<Prefill*> waiting(RequestId id);
  std::vector<std::pair<Prefill*, int64_t>> choose_chunk();
  Status keep_boundary(Prefill& prefill, const StreamState& state, int64_t row_begin, int64_t rows);
  Result<Buffer> collect_windows(const Prefill& prefill, int64_t rows);
  Result<Buffer> collect_pending(const Prefill& prefill);
  Status show_blocks(Prefill& prefill, int64_t ready);
  bool on_host() const { return model->device.kind == DeviceKind::cpu; }
  /// Device to host, once everything queued before is done.
  Status fetch(void* to, const void* from, int64_t bytes) {
    const kernels::KernelContext& ctx = runtime.context();
    return copy_to_host(ctx.device, to, from, bytes, ctx.cuda_stream);
  }
  Result<Buffer> fetch(Buffer buffer);
};

Position resume_start(const LoadedModel& model, ReplayMode mode, Position cached, Position length) {
  if (cached == 0) return 0;
  const int64_t window = model.config.sliding_window;
  if (mode == ReplayMode::bounded) return std::max<Position>(0, cached - window);
  // A row of the stream behind the encoder depends on (window - 1) rows before it per layer. Kept are the rows behind the
  // cached ones, and those that the decoder replays.
  const Position kept = std::min<Position>(cached, length - replay_rows(model, mode, length));
  return std::max<Position>(0, kept - (window - 1) * model.plan.encoder_layers());
}

PrefillEngine::PrefillEngine() = default;
PrefillEngine::~PrefillEngine() = default;

Result<std::unique_ptr<PrefillEngine>> PrefillEngine::create(
    std::shared_ptr<const LoadedModel> model, std::shared_ptr<EngramSource> engram,
    const EngineOptions& options) {
  CEDAR_TRY(const EngineOptions complete, complete_options(options, *model));
  const bool on_host = model->device.kind == DeviceKind::cpu;
  HostMemorySource* const memory = complete.block_memory.get();
  CEDAR_TRY(SequenceStore store,
            SequenceStore::create(*model, 0, model->plan.boundary, 0, complete.kv_pool_blocks,
                                  complete.max_sequences, on_host ? memory : nullptr));
  Buffer mirror;
  if (!on_host) {
    const int64_t bytes = store.pool().total() * store.pool().block_bytes();
    CEDAR_TRY(mirror,
              memory != nullptr ? memory->allocate(bytes) : Buffer::allocate(Device{}, bytes));
  }
  std::unique_ptr<PrefillEngine> engine(new PrefillEngine());
  engine->impl_ =
      std::make_unique<Impl>(std::move(model), std::move(engram), complete, std::move(store));
  engine->impl_->mirror = std::move(mirror);
  Impl& impl = *engine->impl_;
  CEDAR_TRY(ShardedKeys sharded,
            ShardedKeys::create(*impl.model, impl.store, impl.model->plan.boundary, impl.options));
  impl.sharded.emplace(std::move(sharded));
  return engine;
}

Status PrefillEngine::submit(PrefillRequest request) {
  Impl& impl = *impl_;
  CEDAR_CHECK_OK(check_prompt(impl.model->config, request.tokens));
  const auto length = static_cast<int64_t>(request.tokens.size());
  const int64_t blocks = impl.store.blocks_for(length);
  CEDAR_CHECK_OK(check_capacity(impl.options, impl.store, length, blocks));
  if (impl.requests.contains(request.id)) {
    return make_error(Errc::invalid_argument,
                      "request " + std::to_string(request.id.value) + " is already queued");
  }
  if (request.cached_blocks < 0 ||
      request.cached_blocks * impl.model->layout.block_tokens >= length) {
    return make_error(Errc::invalid_argument, std::to_string(request.cached_blocks) +
                                                  " cached blocks leave nothing to compute of " +
                                                  std::to_string(length) + " tokens");
  }
  Prefill prefill;
  CEDAR_TRY(prefill.slot, impl.store.acquire(blocks));
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
  prefill.imported.assign(static_cast<size_t>(request.cached_blocks), false);
  prefill.waits_for_blocks = request.cached_blocks > 0;
  prefill.request = std::move(request);
  const RequestId id = prefill.request.id;
  impl.requests.emplace(id, std::move(prefill));
  return {};
}

bool PrefillEngine::idle() const {
  return std::all_of(impl_->requests.begin(), impl_->requests.end(),
                     [](const auto& entry) { return !entry.second.can_go_on(); });
}

int64_t PrefillEngine::usable_blocks(Position length, int64_t cached_blocks) const {
  const int64_t block = impl_->model->layout.block_tokens;
  const int64_t blocks = std::min(cached_blocks, (length - 1) / block);
  const Position start = resume_start(*impl_->model, impl_->options.replay, blocks * block, length);
  return start > 0 ? blocks : 0;
}

Status PrefillEngine::import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) {
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

Status PrefillEngine::resume(RequestId id, int64_t blocks) {
  CEDAR_TRY(Prefill* const prefill, impl_->waiting(id));
  const auto here = std::find(prefill->imported.begin(), prefill->imported.end(), false);
  if (blocks < 0 || blocks > here - prefill->imported.begin()) {
    return make_error(Errc::invalid_argument,
                      "resume behind " + std::to_string(blocks) + " blocks, " +
                          std::to_string(here - prefill->imported.begin()) + " were imported");
  }
  prefill->cached = blocks * impl_->model->layout.block_tokens;
  prefill->start =
      resume_start(*impl_->model, impl_->options.replay, prefill->cached, prefill->length());
  prefill->computed = prefill->start;
  prefill->shown_blocks = blocks;
  prefill->waits_for_blocks = false;
  return {};
}

Result<Prefill*> PrefillEngine::Impl::waiting(RequestId id) {
  const auto found = requests.find(id);
  if (found == requests.end()) {
    return make_error(Errc::not_found, "request " + std::to_string(id.value));
  }
  if (!found->second.waits_for_blocks) {
    return make_error(Errc::invalid_argument,
                      "request " + std::to_string(id.value) + " does not wait for cached blocks");
  }
  return &found->second;
}

std::vector<std::pair<Prefill*, int64_t>> PrefillEngine::Impl::choose_chunk() {
  std::vector<Prefill*> waiting;
  for (auto& [id, prefill] : requests) {
    if (prefill.can_go_on()) waiting.push_back(&prefill);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Prefill* a, const Prefill* b) {
    const bool a_old = a->waited >= kAgeLimitSteps;
    const bool b_old = b->waited >= kAgeLimitSteps;
    if (a_old != b_old) return a_old;
    const int64_t a_left = a->length() - a->computed;
    const int64_t b_left = b->length() - b->computed;
    return a_left != b_left ? a_left < b_left : a->request.id < b->request.id;
  });
  std::vector<std::pair<Prefill*, int64_t>> chunk;
  int64_t budget = options.prefill_chunk_tokens;
  for (Prefill* prefill : waiting) {
    const int64_t rows = std::min(budget, prefill->length() - prefill->computed);
    prefill->waited = rows > 0 ? 0 : prefill->waited + 1;
    if (rows > 0) chunk.emplace_back(prefill, rows);
    budget -= rows;
  }
  return chunk;
}

Result<std::vector<PrefillEvent>> PrefillEngine::step() {
  Impl& impl = *impl_;
  std::vector<PrefillEvent> events;
  const auto chunk = impl.choose_chunk();
  if (chunk.empty()) return events;
  impl.runtime.begin_step();
  kernels::KernelContext& ctx = impl.runtime.context();

  std::vector<BatchSequence> sequences;
  std::vector<int32_t> override_index;
  std::vector<Bf16> image_rows;
  for (const auto& [prefill, rows] : chunk) {
    impl.sharded->finished(prefill->slot, prefill->length(),
                           prefill->computed / impl.model->layout.block_tokens);
    sequences.push_back(make_sequence(*impl.model, prefill->slot, prefill->request.tokens,
                                      prefill->computed, rows));
    sequences.back().window_floor = prefill->start;
    sequences.back().write_floor = prefill->cached;
    append_image_rows(prefill->request.images, impl.model->config.hidden_size, prefill->computed,
                      rows, override_index, image_rows);
  }
  const StepBatch batch = make_step_batch(ctx, *impl.model, impl.store, std::move(sequences));
  Forward forward(*impl.model, impl.store, *impl.engram, impl.options.numeric, ctx, nullptr,
                  &*impl.sharded);
  const bool images = !image_rows.empty();
  CEDAR_TRY(StreamState state, forward.embed(batch, images ? upload(ctx, override_index) : nullptr,
                                             images ? upload(ctx, image_rows) : nullptr));
  SharedAttention shared;
  CEDAR_CHECK_OK(forward.run_layers(0, impl.model->plan.boundary, batch, shared, state));
  CEDAR_CHECK_OK(forward.project_boundary(batch, state));

  for (size_t i = 0; i < chunk.size(); ++i) {
    auto& [prefill, rows] = chunk[i];
    CEDAR_CHECK_OK(impl.keep_boundary(*prefill, state, batch.row_begin[i], rows));
    prefill->computed += rows;
    PrefillEvent event;
    event.id = prefill->request.id;
    event.rows = rows;
    event.computed = std::max(prefill->computed, prefill->cached);
    event.cached = prefill->cached;
    event.finished = prefill->finished();
    event.blocks_ready = event.finished ? impl.store.blocks_for(prefill->length())
                                        : event.computed / impl.model->layout.block_tokens;
    CEDAR_CHECK_OK(impl.show_blocks(*prefill, event.blocks_ready));
    if (event.finished) impl.sharded->close(prefill->slot);
    events.push_back(event);
  }
  return events;
}

Status PrefillEngine::Impl::keep_boundary(Prefill& prefill, const StreamState& state,
                                          int64_t row_begin, int64_t rows) {
  const Position first_kept = prefill.length() - prefill.boundary_rows;
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

Status PrefillEngine::Impl::show_blocks(Prefill& prefill, int64_t ready) {
  if (on_host()) return {};
  const auto pages = store.pages(prefill.slot);
  const int64_t bytes = store.pool().block_bytes();
  for (int64_t& i = prefill.shown_blocks; i < ready; ++i) {
    const BlockId page = pages[static_cast<size_t>(i)];
    CEDAR_CHECK_OK(fetch(mirror.data() + page.value * bytes, store.pool().data(page), bytes));
  }
  return {};
}

Result<Buffer> PrefillEngine::Impl::fetch(Buffer buffer) {
  if (on_host()) return buffer;
  CEDAR_TRY(Buffer host, Buffer::allocate(Device{}, buffer.bytes()));
  CEDAR_CHECK_OK(fetch(host.data(), buffer.data(), buffer.bytes()));
  return host;
}

std::span<const std::byte> PrefillEngine::block(RequestId id, int64_t index) const {
  const auto found = impl_->requests.find(id);
  CEDAR_ASSERT(found != impl_->requests.end(), std::to_string(id.value));
  const auto pages = impl_->store.pages(found->second.slot);
  CEDAR_ASSERT(index >= 0 && index < static_cast<int64_t>(pages.size()), std::to_string(index));
  const int64_t bytes = impl_->store.pool().block_bytes();
  const BlockId page = pages[static_cast<size_t>(index)];
  const std::byte* data =
      impl_->on_host() ? impl_->store.pool().data(page) : impl_->mirror.data() + page.value * bytes;
  return {data, static_cast<size_t>(bytes)};
}

Result<Buffer> PrefillEngine::Impl::collect_windows(const Prefill& prefill, int64_t rows) {
  const int64_t row_bytes = model->layout.window_row_bytes;
  CEDAR_TRY(Buffer windows, Buffer::allocate(Device{}, model->plan.boundary * rows * row_bytes));
  std::byte* out = windows.data();
  for (LayerId layer = 0; layer < model->plan.boundary; ++layer) {
    CEDAR_CHECK_OK(for_each_ring_run(store.rings(layer), prefill.slot.value,
                                     prefill.length() - rows, prefill.length(),
                                     [&](const uint8_t* ring, int64_t offset, int64_t bytes) {
                                       return fetch(out + offset, ring, bytes);
                                     }));
    out += rows * row_bytes;
  }
  return windows;
}

Result<Buffer> PrefillEngine::Impl::collect_pending(const Prefill& prefill) {
  std::vector<std::pair<int64_t, int64_t>> open;  // source, floats of one of kv and gate
  int64_t floats = 0;
  for (size_t i = 0; i < model->plan.kv_sources.size(); ++i) {
    const int64_t ratio = model->plan.kv_sources[i].ratio;
    if (ratio == 1) continue;
    open.emplace_back(static_cast<int64_t>(i), (ratio - 1) * model->config.head_dim);
    floats += 2 * open.back().second;
  }
  const bool any_open = std::any_of(open.begin(), open.end(), [&](const auto& entry) {
    const auto& source = model->plan.kv_sources[static_cast<size_t>(entry.first)];
    return prefill.length() % source.ratio != 0;
  });
  if (!any_open) return Buffer();
  CEDAR_TRY(Buffer pending, Buffer::allocate(Device{}, floats * int64_t{4}));
  float* out = pending.as<float>();
  for (const auto& [source, count] : open) {
    const int64_t offset = prefill.slot.value * count;
    CEDAR_CHECK_OK(fetch(out, store.pending_kv(source) + offset, count * int64_t{4}));
    CEDAR_CHECK_OK(fetch(out + count, store.pending_gate(source) + offset, count * int64_t{4}));
    out += 2 * count;
  }
  return pending;
}

Result<Handoff> PrefillEngine::take_handoff(RequestId id) {
  const auto found = impl_->requests.find(id);
  CEDAR_ASSERT(found != impl_->requests.end() && found->second.finished(),
               std::to_string(id.value));
  Prefill& prefill = found->second;
  Handoff handoff;
  handoff.length = prefill.length();
  handoff.window_rows = std::min(impl_->model->config.sliding_window, prefill.length());
  CEDAR_TRY(handoff.windows, impl_->collect_windows(prefill, handoff.window_rows));
  CEDAR_TRY(handoff.pending, impl_->collect_pending(prefill));
  CEDAR_TRY(handoff.boundary_x, impl_->fetch(std::move(prefill.boundary_x)));
  CEDAR_TRY(handoff.boundary_pre, impl_->fetch(std::move(prefill.boundary_pre)));
  handoff.boundary_rows = prefill.boundary_rows;
  return handoff;
}

void PrefillEngine::release(RequestId id) {
  const auto found = impl_->requests.find(id);
  if (found == impl_->requests.end()) return;
  impl_->sharded->close(found->second.slot);
  impl_->store.release(found->second.slot);
  impl_->requests.erase(found);
}

int64_t PrefillEngine::max_handoff_bytes() const {
  return cedar::engine::max_handoff_bytes(*impl_->model, impl_->options);
}

PrefillLoad PrefillEngine::load() const {
  PrefillLoad load;
  for (const auto& [id, prefill] : impl_->requests) {
    load.queued_tokens += prefill.length() - prefill.computed;
    ++load.requests;
  }
  load.free_blocks = impl_->store.pool().free();
  return load;
}

const LoadedModel& PrefillEngine::model() const { return *impl_->model; }

}  // namespace cedar::engine
