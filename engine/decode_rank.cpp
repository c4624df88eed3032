#include "engine/decode_rank.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "engine/forward.h"
#include "engine/layer_cut.h"
#include "engine/request_checks.h"
#include "engine/runtime.h"
#include "engine/stored_state.h"
#include "engine/upload.h"

namespace cedar::engine {
namespace {

struct Decode {
  SequenceSlot slot;
  Position read = 0;           // tokens that the encoder has read
  int64_t tokens = 0;          // that there are pages for
  std::vector<bool> imported;  // per block of what was read
  bool started = false;
  Position decoder_floor = 0;  // first position the decoder half has seen
  Position replay_next = 0;
  Position next = 0;  // of the next new token
  // The boundary layer's input for the rows that are replayed; where that layer is, until they were.
  Buffer boundary_x, boundary_pre;
};

}  // namespace

int64_t DecodeChunk::rows() const {
  int64_t rows = 0;
  for (const DecodeRows& part : parts) rows += static_cast<int64_t>(part.tokens.size());
  return rows;
}

struct DecodeRank::Impl {
  std::shared_ptr<const LoadedModel> model;
  std::shared_ptr<EngramSource> engram;
  EngineOptions options;
  Runtime runtime;
  SequenceStore store;
  model::LayerRange range;
  LayerCut before, behind;
  std::map<RequestId, Decode> sequences;
  std::vector<RequestId> decided;
  const float* logits = nullptr;

  Impl(std::shared_ptr<const LoadedModel> m, std::shared_ptr<EngramSource> e,
       const EngineOptions& o, SequenceStore s)
      : model(std::move(m)),
        engram(std::move(e)),
        options(o),
        runtime(o),
        store(std::move(s)),
        range(model->range),
        before(*model, range.first, end()),
        behind(*model, range.last, end()) {}

  LayerId end() const { return static_cast<LayerId>(model->plan.layers.size()); }
  LayerId boundary() const { return model->plan.boundary; }
  bool first() const { return range.first == 0; }
  bool last() const { return range.last == end(); }
  bool joins() const { return range.contains(boundary()); }
  Result<Decode*> waiting(RequestId id);
  Status check(const DecodeChunk& chunk) const;
  std::vector<BatchSequence> rows_of(const DecodeChunk& chunk, bool decoder_half) const;
  Result<StreamState> encoder_half(Forward& forward, const StepBatch& batch,
                                   SharedAttention& shared, std::span<const std::byte> in);
  Result<StreamState> join_replay(const DecodeChunk& chunk, const StreamState& decoded,
                                  int64_t decoded_rows);
  Result<int64_t> leave(const StepBatch& batch, const SharedAttention& shared,
                        const StreamState& state, std::span<std::byte> out);
  Status decide(Forward& forward, const DecodeChunk& chunk, const StepBatch& batch,
                const StreamState& state);
  void advance(const DecodeChunk& chunk);
  StoredLayers stored() { return {*model, store, runtime.context(), range}; }
  /// Of a step, in front of layer `cut`: the encoder half has no replayed rows.
  int64_t max_bytes(const LayerCut& layers, LayerId cut) const {
    const int64_t replayed = cut > boundary() ? options.prefill_chunk_tokens : 0;
    return layers.max_bytes(options, options.max_sequences + replayed, options.max_sequences,
                            false);
  }
  /// Host to device, in the order of the steps.
  Status place(void* to, const void* from, int64_t bytes) {
    const kernels::KernelContext& ctx = runtime.context();
    return copy_to_device(ctx.device, to, from, bytes, ctx.cuda_stream);
  }
};

DecodeRank::DecodeRank() = default;
DecodeRank::~DecodeRank() = default;

Result<std::unique_ptr<DecodeRank>> DecodeRank::create(std::shared_ptr<const LoadedModel> model,
                                                       std::shared_ptr<EngramSource> engram,
                                                       const EngineOptions& options) {
  CEDAR_TRY(const EngineOptions complete, complete_options(options, *model));
  if (model->role == model::Role::encoder) {
    return make_error(Errc::invalid_argument, "a decode rank needs the decoder role's weights");
  }
  CEDAR_TRY(SequenceStore store,
            SequenceStore::create(*model, model->range.first, model->range.last, 0,
                                  complete.kv_pool_blocks, complete.max_sequences));
  std::unique_ptr<DecodeRank> rank(new DecodeRank());
  rank->impl_ =
      std::make_unique<Impl>(std::move(model), std::move(engram), complete, std::move(store));
  return rank;
}

bool DecodeRank::first() const { return impl_->first(); }
bool DecodeRank::last() const { return impl_->last(); }

Status DecodeRank::open(RequestId id, Position read, int64_t tokens) {
  Impl& impl = *impl_;
  if (impl.sequences.contains(id)) {
    return make_error(Errc::invalid_argument,
                      "request " + std::to_string(id.value) + " is already reserved");
  }
  if (read < 1 || tokens < read) {
    return make_error(Errc::invalid_argument,
                      std::to_string(read) + " of " + std::to_string(tokens) + " tokens were read");
  }
  const int64_t blocks = impl.store.blocks_for(tokens);
  CEDAR_CHECK_OK(check_capacity(impl.options, impl.store, tokens, blocks));
  Decode decode;
  decode.read = decode.next = read;
  decode.tokens = tokens;
  decode.imported.assign(static_cast<size_t>(impl.store.blocks_for(read)), false);
  CEDAR_TRY(decode.slot, impl.store.acquire(blocks));
  impl.sequences.emplace(id, std::move(decode));
  return {};
}

bool DecodeRank::knows(RequestId id) const { return impl_->sequences.contains(id); }

std::vector<RequestId> DecodeRank::sequences() const {
  std::vector<RequestId> ids;
  for (const auto& [id, decode] : impl_->sequences) ids.push_back(id);
  return ids;
}

Result<Decode*> DecodeRank::Impl::waiting(RequestId id) {
  const auto found = sequences.find(id);
  if (found == sequences.end()) {
    return make_error(Errc::not_found, "request " + std::to_string(id.value));
  }
  if (found->second.started) {
    return make_error(Errc::invalid_argument, "request " + std::to_string(id.value) + " has begun");
  }
  return &found->second;
}

Status DecodeRank::import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) {
  Impl& impl = *impl_;
  CEDAR_TRY(Decode* const decode, impl.waiting(id));
  const int64_t block_bytes = impl.store.pool().block_bytes();
  if (index < 0 || index >= static_cast<int64_t>(decode->imported.size()) ||
      static_cast<int64_t>(bytes.size()) != block_bytes) {
    return make_error(Errc::invalid_argument, "block " + std::to_string(index) + " of " +
                                                  std::to_string(decode->imported.size()) + ", " +
                                                  std::to_string(bytes.size()) + " bytes of " +
                                                  std::to_string(block_bytes));
  }
  const BlockId page = impl.store.pages(decode->slot)[static_cast<size_t>(index)];
  CEDAR_CHECK_OK(impl.place(impl.store.pool().data(page), bytes.data(), block_bytes));
  decode->imported[static_cast<size_t>(index)] = true;
  return {};
}

Status DecodeRank::start(RequestId id, Handoff handoff) {
  Impl& impl = *impl_;
  CEDAR_TRY(Decode* const decode, impl.waiting(id));
  const auto missing = std::find(decode->imported.begin(), decode->imported.end(), false);
  if (missing != decode->imported.end()) {
    return make_error(
        Errc::invalid_argument,
        "block " + std::to_string(missing - decode->imported.begin()) + " has not been imported");
  }
  CEDAR_CHECK_OK(check_handoff(*impl.model, impl.options.replay, decode->read, handoff));
  CEDAR_CHECK_OK(place_state(impl.stored(), decode->slot, handoff));
  decode->decoder_floor = decode->replay_next = decode->read - handoff.boundary_rows;
  if (impl.joins()) {
    decode->boundary_x = std::move(handoff.boundary_x);
    decode->boundary_pre = std::move(handoff.boundary_pre);
  }
  decode->started = true;
  return {};
}

void DecodeRank::release(RequestId id) {
  const auto found = impl_->sequences.find(id);
  if (found == impl_->sequences.end()) return;
  impl_->store.release(found->second.slot);
  impl_->sequences.erase(found);
}

/// Whether the rows may come now: they may be another process's word.
Status DecodeRank::Impl::check(const DecodeChunk& chunk) const {
  if (chunk.parts.empty()) return make_error(Errc::invalid_argument, "a step without rows");
  for (size_t i = 0; i < chunk.parts.size(); ++i) {
    const DecodeRows& part = chunk.parts[i];
    const auto bad = [&](const char* what, int64_t expected, int64_t got) {
      return make_error(Errc::invalid_argument, "rows of request " + std::to_string(part.id.value) +
                                                    ": " + what + ": expected " +
                                                    std::to_string(expected) + ", got " +
                                                    std::to_string(got));
    };
    const auto found = sequences.find(part.id);
    if (found == sequences.end() || !found->second.started) return bad("started", 1, 0);
    const Decode& decode = found->second;
    const auto rows = static_cast<int64_t>(part.tokens.size());
    const Position start = part.replay ? decode.replay_next : decode.next;
    const int64_t most =
        part.replay ? decode.read - start : std::min<int64_t>(1, decode.tokens - start);
    if (part.start != start) return bad("start", start, part.start);
    if (rows < 1 || rows > most) return bad("rows", most, rows);
    if (!part.replay && decode.replay_next < decode.read) return bad("replay", 1, 0);
    if (part.ends_replay != (part.replay && start + rows == decode.read)) {
      return bad("ends_replay", part.ends_replay ? 0 : 1, part.ends_replay ? 1 : 0);
    }
    CEDAR_CHECK_OK(check_prompt(model->config, part.tokens));
    const int64_t look_back = ngram_look_back(model->config, part.start);
    if (static_cast<int64_t>(part.history.size()) != look_back) {
      return bad("history", look_back, static_cast<int64_t>(part.history.size()));
    }
    if (!part.history.empty()) CEDAR_CHECK_OK(check_prompt(model->config, part.history));
    for (size_t other = 0; other < i; ++other) {
      if (chunk.parts[other].id == part.id) return bad("parts in one step", 1, 2);
      if (chunk.parts[other].replay && !part.replay)
        return bad("place", 0, static_cast<int64_t>(i));
    }
  }
  return {};
}

std::vector<BatchSequence> DecodeRank::Impl::rows_of(const DecodeChunk& chunk,
                                                     bool decoder_half) const {
  std::vector<BatchSequence> rows;
  for (const DecodeRows& part : chunk.parts) {
    if (part.replay && !decoder_half) continue;
    const Decode& decode = sequences.at(part.id);
    BatchSequence& sequence = rows.emplace_back();
    sequence.slot = decode.slot;
    sequence.start = part.start;
    sequence.tokens = part.tokens;
    sequence.history = part.history;
    sequence.writes_global = !part.replay;
    if (decoder_half) sequence.window_floor = decode.decoder_floor;
  }
  return rows;
}

Result<int64_t> DecodeRank::run(const DecodeChunk& chunk, std::span<const std::byte> in,
                                std::span<std::byte> out) {
  Impl& impl = *impl_;
  impl.decided.clear();
  impl.logits = nullptr;
  CEDAR_CHECK_OK(impl.check(chunk));
  impl.runtime.begin_step();
  kernels::KernelContext& ctx = impl.runtime.context();
  Forward forward(*impl.model, impl.store, *impl.engram, impl.options.numeric, ctx);
  std::vector<BatchSequence> decoding = impl.rows_of(chunk, false);
  StreamState state;
  int64_t decoded_rows = 0;
  SharedAttention shared;
  if (impl.range.first <= impl.boundary() && !decoding.empty()) {
    const StepBatch batch = make_step_batch(ctx, *impl.model, impl.store, std::move(decoding));
    decoded_rows = batch.rows;
    CEDAR_TRY(state, impl.encoder_half(forward, batch, shared, in));
    if (impl.range.last <= impl.boundary()) {
      impl.advance(chunk);
      return impl.leave(batch, shared, state, out);
    }
  }
  if (impl.range.last <= impl.boundary()) {
    // Rows that are replayed only: nothing to do in these layers.
    impl.advance(chunk);
    return int64_t{0};
  }
  const StepBatch batch = make_step_batch(ctx, *impl.model, impl.store, impl.rows_of(chunk, true));
  SharedAttention decoder_shared;
  if (impl.joins()) {
    CEDAR_TRY(state, impl.join_replay(chunk, state, decoded_rows));
  } else {
    const std::vector<CutState> none(batch.sequences.size());
    CEDAR_TRY(state, impl.before.read(ctx, impl.store, forward, batch, decoder_shared, none, in));
  }
  CEDAR_CHECK_OK(forward.run_layers(std::max(impl.range.first, impl.boundary()), impl.range.last,
                                    batch, decoder_shared, state));
  if (impl.last()) CEDAR_CHECK_OK(impl.decide(forward, chunk, batch, state));
  impl.advance(chunk);
  return impl.last() ? int64_t{0} : impl.leave(batch, decoder_shared, state, out);
}

Result<StreamState> DecodeRank::Impl::encoder_half(Forward& forward, const StepBatch& batch,
                                                   SharedAttention& shared,
                                                   std::span<const std::byte> in) {
  StreamState state;
  if (first()) {
    CEDAR_TRY(state, forward.embed(batch));
  } else {
    const std::vector<CutState> none(batch.sequences.size());
    CEDAR_TRY(state, before.read(runtime.context(), store, forward, batch, shared, none, in));
  }
  CEDAR_CHECK_OK(
      forward.run_layers(range.first, std::min(range.last, boundary()), batch, shared, state));
  return state;
}

Result<StreamState> DecodeRank::Impl::join_replay(const DecodeChunk& chunk,
                                                  const StreamState& decoded,
                                                  int64_t decoded_rows) {
  const kernels::KernelContext& ctx = runtime.context();
  const int64_t copies = model->config.hc_mult;
  const int64_t x_row = copies * model->config.hidden_size;
  const int64_t rows = chunk.rows();
  if (rows == decoded_rows) return decoded;
  StreamState joined;
  joined.x = ctx.arena->allocate<Bf16>(rows * x_row);
  float* pre = ctx.arena->allocate<float>(rows * copies);
  joined.pre = pre;
  if (decoded_rows > 0) {
    CEDAR_CHECK_OK(copy_on_device(ctx.device, joined.x, decoded.x,
                                  decoded_rows * x_row * int64_t{2}, ctx.cuda_stream));
    CEDAR_CHECK_OK(copy_on_device(ctx.device, pre, decoded.pre, decoded_rows * copies * int64_t{4},
                                  ctx.cuda_stream));
  }
  int64_t target = decoded_rows;
  for (const DecodeRows& part : chunk.parts) {
    if (!part.replay) continue;
    const Decode& decode = sequences.at(part.id);
    const int64_t row = part.start - decode.decoder_floor;
    const auto count = static_cast<int64_t>(part.tokens.size());
    CEDAR_CHECK_OK(place(joined.x + target * x_row, decode.boundary_x.as<Bf16>() + row * x_row,
                         count * x_row * int64_t{2}));
    CEDAR_CHECK_OK(place(pre + target * copies, decode.boundary_pre.as<float>() + row * copies,
                         count * copies * int64_t{4}));
    target += count;
  }
  return joined;
}

Result<int64_t> DecodeRank::Impl::leave(const StepBatch& batch, const SharedAttention& shared,
                                        const StreamState& state, std::span<std::byte> out) {
  const std::vector<CutState> none(batch.sequences.size());
  const int64_t bytes = behind.bytes(batch, none);
  if (bytes > static_cast<int64_t>(out.size())) {
    return make_error(
        Errc::internal,
        std::to_string(bytes) + " bytes for the next rank, room for " + std::to_string(out.size()));
  }
  CEDAR_CHECK_OK(behind.write(runtime.context(), store, batch, shared, state, none,
                              out.first(static_cast<size_t>(bytes))));
  return bytes;
}

Status DecodeRank::Impl::decide(Forward& forward, const DecodeChunk& chunk, const StepBatch& batch,
                                const StreamState& state) {
  std::vector<int32_t> rows;
  for (size_t i = 0; i < chunk.parts.size(); ++i) {
    const DecodeRows& part = chunk.parts[i];
    if (part.replay && !part.ends_replay) continue;
    decided.push_back(part.id);
    rows.push_back(
        static_cast<int32_t>(batch.row_begin[i] + static_cast<int64_t>(part.tokens.size()) - 1));
  }
  if (rows.empty()) return {};
  CEDAR_TRY(logits, forward.logits(state, upload(runtime.context(), rows),
                                   static_cast<int64_t>(rows.size())));
  return {};
}

void DecodeRank::Impl::advance(const DecodeChunk& chunk) {
  for (const DecodeRows& part : chunk.parts) {
    Decode& decode = sequences.at(part.id);
    if (!part.replay) {
      ++decode.next;
      continue;
    }
    decode.replay_next += static_cast<int64_t>(part.tokens.size());
    if (!part.ends_replay) continue;
    decode.boundary_x = Buffer();
    decode.boundary_pre = Buffer();
  }
}

int64_t DecodeRank::max_in_bytes() const {
  return impl_->first() ? 0 : impl_->max_bytes(impl_->before, impl_->range.first);
}
int64_t DecodeRank::max_out_bytes() const {
  return impl_->last() ? 0 : impl_->max_bytes(impl_->behind, impl_->range.last);
}

const std::vector<RequestId>& DecodeRank::decided() const { return impl_->decided; }
const float* DecodeRank::logits() const { return impl_->logits; }
kernels::KernelContext& DecodeRank::context() { return impl_->runtime.context(); }
int64_t DecodeRank::block_bytes() const { return impl_->store.pool().block_bytes(); }
int64_t DecodeRank::max_handoff_bytes() const {
  return cedar::engine::max_handoff_bytes(*impl_->model, impl_->options);
}
int32_t DecodeRank::free_slots() const { return impl_->store.free_slots(); }
int64_t DecodeRank::free_blocks() const { return impl_->store.pool().free(); }
int64_t DecodeRank::total_blocks() const { return impl_->store.pool().total(); }
const EngineOptions& DecodeRank::options() const { return impl_->options; }
const LoadedModel& DecodeRank::model() const { return *impl_->model; }

}  // namespace cedar::engine
