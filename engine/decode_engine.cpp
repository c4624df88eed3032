#include "engine/decode_engine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "engine/decode_graphs.h"
#include "engine/forward.h"
#include "engine/request_checks.h"
#include "engine/runtime.h"
#include "engine/sharded_keys.h"
#include "engine/stored_state.h"
#include "engine/upload.h"
#include "engine/writing.h"

namespace cedar::engine {
namespace {

enum class Phase : uint8_t { reserved, replaying, decoding };

struct Decode : Writing {
  SequenceSlot slot;
  Phase phase = Phase::reserved;
  std::vector<bool> imported;  // per block of what was read
  Handoff handoff;             // dropped after the replay
  Position replay_next = 0;
  Position decoder_floor = 0;  // first position the decoder half has seen
};

/// Rows of one step: the sequences that decode, then those that replay.
struct StepPlan {
  std::vector<Decode*> decoding;
  std::vector<std::pair<Decode*, int64_t>> replaying;  // and how many rows
  int64_t replay_rows = 0;
};

/// Whose next tokens a step decides, a row of logits each, on the device of `ctx` and in its workspace.
struct StepLogits {
  kernels::KernelContext* ctx = nullptr;
  const float* logits = nullptr;
  std::vector<Decode*> sequences;
};

}  // namespace

struct DecodeEngine::Impl {
  std::shared_ptr<const LoadedModel> model;
  std::shared_ptr<EngramSource> engram;
  EngineOptions options;
  Runtime runtime;
  SequenceStore store;
  std::optional<ShardedKeys> sharded;  // set once the store has its place
  DecodeGraphs graphs;
  std::map<RequestId, Decode> requests;
  StepStats stats;
  BlockSink block_sink;

  Impl(std::shared_ptr<const LoadedModel> m, std::shared_ptr<EngramSource> e,
       const EngineOptions& o, SequenceStore s)
      : model(std::move(m)),
        engram(std::move(e)),
        options(o),
        runtime(o),
        store(std::move(s)),
        graphs(*model, store, *engram, options.numeric, runtime.context()) {}

  StepPlan plan_step();
  void spread_keys(const StepPlan& plan);
  Result<StreamState> encode_new_tokens(Forward& forward, const StepPlan& plan);
  Result<StreamState> join_replay(const StepPlan& plan, const StreamState& decoded);
  std::vector<BatchSequence> encoder_rows(const StepPlan& plan);
  std::vector<BatchSequence> decoder_rows(const StepPlan& plan);
  Result<StepLogits> launched_step(const StepPlan& plan);
  Status sample_all(const StepLogits& step, std::vector<TokenEvent>& events);
  Status show_blocks(const std::vector<Decode*>& decoding);
  StoredLayers stored() { return {*model, store, runtime.context(), {0, model->plan.boundary}}; }
  /// Host to device, in the order of the steps.
  Status place(void* to, const void* from, int64_t bytes) {
    const kernels::KernelContext& ctx = runtime.context();
    return copy_to_device(ctx.device, to, from, bytes, ctx.cuda_stream);
  }
};

std::vector<TokenId> tokens_to_read(const DecodeRequest& request) {
  std::vector<TokenId> tokens = request.prompt;
  tokens.insert(tokens.end(), request.emitted.begin(), request.emitted.end());
  return tokens;
}

DecodeEngine::DecodeEngine() = default;
DecodeEngine::~DecodeEngine() = default;

Result<std::unique_ptr<DecodeEngine>> DecodeEngine::create(std::shared_ptr<const LoadedModel> model,
                                                           std::shared_ptr<EngramSource> engram,
                                                           const EngineOptions& options) {
  CEDAR_TRY(const EngineOptions complete, complete_options(options, *model));
  if (!model->head || model->range.first != 0) {
    return make_error(Errc::invalid_argument, "a decode engine needs the decoder role's weights");
  }
  CEDAR_TRY(SequenceStore store,
            SequenceStore::create(*model, 0, static_cast<LayerId>(model->plan.layers.size()), 0,
                                  complete.kv_pool_blocks, complete.max_sequences));
  std::unique_ptr<DecodeEngine> engine(new DecodeEngine());
  engine->impl_ =
      std::make_unique<Impl>(std::move(model), std::move(engram), complete, std::move(store));
  Impl& impl = *engine->impl_;
  CEDAR_TRY(
      ShardedKeys sharded,
      ShardedKeys::create(*impl.model, impl.store,
                          static_cast<LayerId>(impl.model->plan.layers.size()), impl.options));
  impl.sharded.emplace(std::move(sharded));
  return engine;
}

Status DecodeEngine::reserve(DecodeRequest request) {
  Impl& impl = *impl_;
  CEDAR_CHECK_OK(check_decode_request(impl.model->config, impl.options, request));
  if (impl.requests.contains(request.id)) {
    return make_error(Errc::invalid_argument,
                      "request " + std::to_string(request.id.value) + " is already reserved");
  }
  const int64_t total = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
  const int64_t blocks = impl.store.blocks_for(total);
  CEDAR_CHECK_OK(check_capacity(impl.options, impl.store, total, blocks));
  CEDAR_TRY(Writing writing, begin_writing(impl.model->config, impl.options, std::move(request)));
  Decode decode{std::move(writing)};
  CEDAR_TRY(decode.slot, impl.store.acquire(blocks));
  decode.imported.assign(static_cast<size_t>(impl.store.blocks_for(decode.read_length())), false);
  const RequestId id = decode.request.id;
  impl.requests.emplace(id, std::move(decode));
  return {};
}

Status DecodeEngine::import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) {
  Impl& impl = *impl_;
  const auto found = impl.requests.find(id);
  if (found == impl.requests.end()) {
    return make_error(Errc::not_found, "request " + std::to_string(id.value));
  }
  Decode& decode = found->second;
  if (index < 0 || index >= static_cast<int64_t>(decode.imported.size()) ||
      decode.phase != Phase::reserved) {
    return make_error(Errc::invalid_argument,
                      "block " + std::to_string(index) + " of a prompt of " +
                          std::to_string(decode.imported.size()) + " blocks");
  }
  if (static_cast<int64_t>(bytes.size()) != impl.store.pool().block_bytes()) {
    return make_error(Errc::invalid_argument, "block of " + std::to_string(bytes.size()) +
                                                  " bytes, expected " +
                                                  std::to_string(impl.store.pool().block_bytes()));
  }
  const BlockId page = impl.store.pages(decode.slot)[static_cast<size_t>(index)];
  CEDAR_CHECK_OK(
      impl.place(impl.store.pool().data(page), bytes.data(), static_cast<int64_t>(bytes.size())));
  decode.imported[static_cast<size_t>(index)] = true;
  return {};
}

Status DecodeEngine::start(RequestId id, Handoff handoff) {
  Impl& impl = *impl_;
  const auto found = impl.requests.find(id);
  if (found == impl.requests.end()) {
    return make_error(Errc::not_found, "request " + std::to_string(id.value));
  }
  Decode& decode = found->second;
  const auto missing = std::find(decode.imported.begin(), decode.imported.end(), false);
  if (missing != decode.imported.end()) {
    return make_error(
        Errc::invalid_argument,
        "block " + std::to_string(missing - decode.imported.begin()) + " has not been imported");
  }
  CEDAR_CHECK_OK(check_handoff(*impl.model, impl.options.replay, decode.read_length(), handoff));
  decode.handoff = std::move(handoff);
  CEDAR_CHECK_OK(place_state(impl.stored(), decode.slot, decode.handoff));
  decode.decoder_floor = decode.read_length() - decode.handoff.boundary_rows;
  decode.replay_next = decode.decoder_floor;
  decode.phase = Phase::replaying;
  return {};
}

void DecodeEngine::cancel(RequestId id) {
  const auto found = impl_->requests.find(id);
  if (found == impl_->requests.end()) return;
  impl_->sharded->close(found->second.slot);
  impl_->store.release(found->second.slot);
  impl_->requests.erase(found);
}

void DecodeEngine::on_block(BlockSink sink) { impl_->block_sink = std::move(sink); }

/// Before the step's tokens are appended: the last token of each sequence has just got its rows.
Status DecodeEngine::Impl::show_blocks(const std::vector<Decode*>& decoding) {
  if (!block_sink) return {};
  const int64_t bytes = store.pool().block_bytes();
  for (const Decode* decode : decoding) {
    const auto length = static_cast<int64_t>(decode->tokens.size());
    if (length % model->layout.block_tokens != 0) continue;
    const int64_t index = length / model->layout.block_tokens - 1;
    const std::byte* data =
        store.pool().data(store.pages(decode->slot)[static_cast<size_t>(index)]);
    Buffer host;
    if (model->device.kind != DeviceKind::cpu) {
      CEDAR_TRY(host, Buffer::allocate(Device{}, bytes));
      const kernels::KernelContext& ctx = runtime.context();
      CEDAR_CHECK_OK(copy_to_host(ctx.device, host.data(), data, bytes, ctx.cuda_stream));
      data = host.data();
    }
    block_sink(decode->request.id, index, {data, static_cast<size_t>(bytes)});
  }
  return {};
}

bool DecodeEngine::idle() const {
  return std::all_of(impl_->requests.begin(), impl_->requests.end(),
                     [](const auto& entry) { return entry.second.phase == Phase::reserved; });
}

StepPlan DecodeEngine::Impl::plan_step() {
  StepPlan plan;
  for (auto& [id, decode] : requests) {
    if (decode.phase == Phase::decoding) {
      plan.decoding.push_back(&decode);
    } else if (decode.phase == Phase::replaying) {
      const int64_t rows = std::min(options.prefill_chunk_tokens - plan.replay_rows,
                                    decode.read_length() - decode.replay_next);
      if (rows == 0) continue;
      plan.replaying.emplace_back(&decode, rows);
      plan.replay_rows += rows;
    }
  }
  return plan;
}

void DecodeEngine::Impl::spread_keys(const StepPlan& plan) {
  const int64_t block_tokens = model->layout.block_tokens;
  for (const Decode* decode : plan.decoding) {
    // The last token has been sampled, not computed.
    const auto tokens = static_cast<int64_t>(decode->tokens.size());
    sharded->finished(decode->slot, tokens, (tokens - 1) / block_tokens);
  }
  for (const auto& [decode, rows] : plan.replaying) {
    sharded->finished(decode->slot, decode->read_length(), decode->read_length() / block_tokens);
  }
}

std::vector<BatchSequence> DecodeEngine::Impl::encoder_rows(const StepPlan& plan) {
  std::vector<BatchSequence> sequences;
  for (Decode* decode : plan.decoding) {
    const auto last = static_cast<Position>(decode->tokens.size()) - 1;
    sequences.push_back(make_sequence(*model, decode->slot, decode->tokens, last, 1));
  }
  return sequences;
}

Result<StreamState> DecodeEngine::Impl::encode_new_tokens(Forward& forward, const StepPlan& plan) {
  const StepBatch batch = make_step_batch(runtime.context(), *model, store, encoder_rows(plan));
  CEDAR_TRY(StreamState state, forward.embed(batch));
  SharedAttention shared;
  CEDAR_CHECK_OK(forward.run_layers(0, model->plan.boundary, batch, shared, state));
  return state;
}

Result<StreamState> DecodeEngine::Impl::join_replay(const StepPlan& plan,
                                                    const StreamState& decoded) {
  const kernels::KernelContext& ctx = runtime.context();
  const int64_t copies = model->config.hc_mult;
  const int64_t x_row = copies * model->config.hidden_size;
  const auto decode_rows = static_cast<int64_t>(plan.decoding.size());
  const int64_t rows = decode_rows + plan.replay_rows;
  StreamState joined;
  joined.x = ctx.arena->allocate<Bf16>(rows * x_row);
  float* pre = ctx.arena->allocate<float>(rows * copies);
  joined.pre = pre;
  if (decode_rows > 0) {
    CEDAR_CHECK_OK(copy_on_device(ctx.device, joined.x, decoded.x, decode_rows * x_row * int64_t{2},
                                  ctx.cuda_stream));
    CEDAR_CHECK_OK(copy_on_device(ctx.device, pre, decoded.pre, decode_rows * copies * int64_t{4},
                                  ctx.cuda_stream));
  }
  int64_t target = decode_rows;
  for (const auto& [decode, count] : plan.replaying) {
    const int64_t row = decode->replay_next - decode->decoder_floor;
    CEDAR_CHECK_OK(place(joined.x + target * x_row,
                         decode->handoff.boundary_x.as<Bf16>() + row * x_row,
                         count * x_row * int64_t{2}));
    CEDAR_CHECK_OK(place(pre + target * copies,
                         decode->handoff.boundary_pre.as<float>() + row * copies,
                         count * copies * int64_t{4}));
    target += count;
  }
  return joined;
}

std::vector<BatchSequence> DecodeEngine::Impl::decoder_rows(const StepPlan& plan) {
  std::vector<BatchSequence> sequences = encoder_rows(plan);
  for (size_t i = 0; i < sequences.size(); ++i) {
    sequences[i].window_floor = plan.decoding[i]->decoder_floor;
  }
  for (const auto& [decode, count] : plan.replaying) {
    sequences.push_back(
        make_sequence(*model, decode->slot, decode->tokens, decode->replay_next, count));
    sequences.back().window_floor = decode->decoder_floor;
    sequences.back().writes_global = false;
  }
  return sequences;
}

Status DecodeEngine::Impl::sample_all(const StepLogits& step, std::vector<TokenEvent>& events) {
  const std::vector<Writing*> sequences(step.sequences.begin(), step.sequences.end());
  CEDAR_TRY(WrittenTokens written, write_tokens(*step.ctx, model->config, step.logits, sequences));
  stats.whole_rows = written.whole_rows;
  events = std::move(written.events);
  return {};
}

/// One operation after the other, all rows of the step.
Result<StepLogits> DecodeEngine::Impl::launched_step(const StepPlan& plan) {
  runtime.begin_step();
  kernels::KernelContext& ctx = runtime.context();
  Forward forward(*model, store, *engram, options.numeric, ctx, nullptr, &*sharded);
  StreamState decoded;
  if (!plan.decoding.empty()) {
    CEDAR_TRY(decoded, encode_new_tokens(forward, plan));
  }
  StreamState state = decoded;
  if (!plan.replaying.empty()) {
    CEDAR_TRY(state, join_replay(plan, decoded));
  }
  const StepBatch batch = make_step_batch(ctx, *model, store, decoder_rows(plan));
  SharedAttention shared;
  CEDAR_CHECK_OK(forward.run_layers(
      model->plan.boundary, static_cast<LayerId>(model->plan.layers.size()), batch, shared, state));

  StepLogits out{&ctx, nullptr, plan.decoding};
  std::vector<int32_t> rows(plan.decoding.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
  for (size_t i = 0; i < plan.replaying.size(); ++i) {
    const auto& [decode, count] = plan.replaying[i];
    decode->replay_next += count;
    if (decode->replay_next < decode->read_length()) continue;
    decode->phase = Phase::decoding;
    decode->handoff = Handoff();
    out.sequences.push_back(decode);
    rows.push_back(static_cast<int32_t>(batch.row_begin[plan.decoding.size() + i] + count - 1));
  }
  if (!rows.empty()) {
    CEDAR_TRY(out.logits,
              forward.logits(state, upload(ctx, rows), static_cast<int64_t>(rows.size())));
  }
  return out;
}

Result<std::vector<TokenEvent>> DecodeEngine::step() {
  Impl& impl = *impl_;
  std::vector<TokenEvent> events;
  const StepPlan plan = impl.plan_step();
  impl.stats = {};
  if (plan.decoding.empty() && plan.replaying.empty()) return events;
  const auto begin = std::chrono::steady_clock::now();
  impl.spread_keys(plan);
  std::vector<BatchSequence> encoder = impl.encoder_rows(plan);
  StepLogits out;
  if (impl.options.decode_graphs && plan.replaying.empty() && impl.graphs.takes(encoder)) {
    out = {&impl.graphs.context(), nullptr, plan.decoding};
    CEDAR_TRY(out.logits, impl.graphs.step(std::move(encoder), impl.decoder_rows(plan)));
    impl.stats.replayed = impl.graphs.replayed();
  } else {
    CEDAR_TRY(out, impl.launched_step(plan));
  }
  CEDAR_CHECK_OK(impl.show_blocks(plan.decoding));
  if (!out.sequences.empty()) {
    CEDAR_CHECK_OK(impl.sample_all(out, events));
    for (const TokenEvent& event : events) {
      if (event.finish != FinishReason::none) cancel(event.id);
    }
  }
  impl.stats.decode_rows = static_cast<int64_t>(plan.decoding.size());
  impl.stats.replay_rows = plan.replay_rows;
  impl.stats.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return events;
}

StepStats DecodeEngine::last_step() const { return impl_->stats; }

DecodeLoad DecodeEngine::load() const {
  DecodeLoad load;
  load.sequences = static_cast<int32_t>(impl_->requests.size());
  load.free_slots = impl_->store.free_slots();
  load.free_blocks = impl_->store.pool().free();
  load.total_blocks = impl_->store.pool().total();
  return load;
}

const LoadedModel& DecodeEngine::model() const { return *impl_->model; }

int64_t DecodeEngine::block_bytes() const { return impl_->store.pool().block_bytes(); }

int64_t DecodeEngine::max_handoff_bytes() const {
  return cedar::engine::max_handoff_bytes(*impl_->model, impl_->options);
}

}  // namespace cedar::engine
