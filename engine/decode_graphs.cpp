#include "engine/decode_graphs.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "engine/upload.h"

namespace cedar::engine {
namespace {

// Larger batches are busy enough for launches to hide.
constexpr int64_t kMostRows = 256;
constexpr size_t kMostRecordings = 32;

/// Up to the next multiple of an eighth of the power of two below, of `least` at least: few shapes, little padding.
int64_t rounded(int64_t count, int64_t least) {
  const auto floor =
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(count, 1))));
  return align_up(std::max<int64_t>(count, 1), std::max(least, floor / 8));
}

int64_t rounded_rows(int64_t rows) { return rows <= 4 ? rows : rounded(rows, 4); }

}  // namespace

DecodeGraphs::DecodeGraphs(const LoadedModel& model, SequenceStore& store, EngramSource& engram,
                           const NumericOptions& numeric, const kernels::KernelContext& ctx)
    : model_(model),
      store_(store),
      arena_(ctx.device),
      ctx_(ctx),
      forward_(model, store, engram, numeric, ctx_) {
  ctx_.arena = &arena_;
}

bool DecodeGraphs::takes(const std::vector<BatchSequence>& sequences) const {
  if (ctx_.device.kind == DeviceKind::cpu || sequences.empty() ||
      static_cast<int64_t>(sequences.size()) > kMostRows) {
    return false;
  }
  return std::none_of(sequences.begin(), sequences.end(), [&](const BatchSequence& s) {
    return s.rows() != 1 || model_.is_image(s.tokens.front());
  });
}

StepShape DecodeGraphs::shape_of(const std::vector<BatchSequence>& sequences) const {
  constexpr int64_t kLeastTokens = 512, kLeastPages = 8;
  StepShape shape;
  shape.rows = rounded_rows(static_cast<int64_t>(sequences.size()));
  for (const BatchSequence& s : sequences) {
    shape.tokens = std::max(shape.tokens, s.end());
    shape.pages = std::max(shape.pages, static_cast<int64_t>(store_.pages(s.slot).size()));
  }
  shape.tokens = rounded(shape.tokens, kLeastTokens);
  shape.pages = rounded(shape.pages, kLeastPages);
  return shape;
}

DecodeGraphs::Inputs DecodeGraphs::place_inputs(const StepShape& shape,
                                                std::vector<BatchSequence> encoder,
                                                std::vector<BatchSequence> decoder) {
  Inputs inputs;
  inputs.encoder = make_step_batch(ctx_, model_, store_, std::move(encoder), &shape);
  inputs.decoder = make_step_batch(ctx_, model_, store_, std::move(decoder), &shape);
  std::vector<int32_t> rows(static_cast<size_t>(shape.rows));
  std::iota(rows.begin(), rows.end(), 0);
  inputs.rows = upload(ctx_, rows);
  for (const model::LayerPlan& plan : model_.plan.layers) {
    if (!plan.has_engram) continue;
    inputs.engram[plan.id] = arena_.allocate<uint8_t>(forward_.engram_bytes(shape.rows));
  }
  return inputs;
}

Status DecodeGraphs::fetch_engram(LayerId layer, const Inputs& inputs) {
  const StepBatch& batch = layer < model_.plan.boundary ? inputs.encoder : inputs.decoder;
  CEDAR_TRY(const std::vector<uint8_t> packed, forward_.engram_rows(layer, batch));
  return copy_to_device(ctx_.device, inputs.engram.at(layer), packed.data(),
                        static_cast<int64_t>(packed.size()), ctx_.cuda_stream);
}

template <class Engram>
Result<const float*> DecodeGraphs::run(const Inputs& inputs, const Engram& engram) {
  CEDAR_TRY(StreamState state, forward_.embed(inputs.encoder));
  SharedAttention shared;
  for (const model::LayerPlan& plan : model_.plan.layers) {
    const bool decoder = plan.id >= model_.plan.boundary;
    if (plan.id == model_.plan.boundary) shared = SharedAttention();
    const StepBatch& batch = decoder ? inputs.decoder : inputs.encoder;
    if (plan.has_engram) {
      CEDAR_CHECK_OK(close_sublayer(ctx_, state));
      CEDAR_CHECK_OK(engram(plan.id));
      CEDAR_CHECK_OK(forward_.add_engram(plan.id, batch, inputs.engram.at(plan.id), state.x));
    }
    CEDAR_CHECK_OK(forward_.open_layer(plan.id, batch, shared, state));
  }
  CEDAR_CHECK_OK(close_sublayer(ctx_, state));
  CEDAR_TRY(const float* logits, forward_.logits(state, inputs.rows, inputs.encoder.rows));
  return logits;
}

Result<DecodeGraphs::Recording> DecodeGraphs::record(const Inputs& inputs) {
  Recording out;
  std::optional<LayerId> reads;  // of the segment under way
  const auto begin = [&] { return RecordedLaunches::begin(ctx_.device, ctx_.cuda_stream); };
  const auto end = [&]() -> Status {
    CEDAR_TRY(RecordedLaunches launches, RecordedLaunches::end(ctx_.device, ctx_.cuda_stream));
    out.segments.push_back({reads, std::move(launches)});
    return {};
  };
  CEDAR_CHECK_OK(begin());
  bool open = true;
  const auto logits = run(inputs, [&](LayerId layer) -> Status {
    open = false;
    CEDAR_CHECK_OK(end());
    reads = layer;
    CEDAR_CHECK_OK(begin());
    open = true;
    return {};
  });
  // Ended in any case: a stream must not stay in its recording.
  const Status ended = open ? end() : Status{};
  if (!logits) return logits.error();
  if (!ended) return ended.error();
  out.logits = *logits;
  out.generation = arena_.generation();
  out.end = arena_.mark();
  return out;
}

Result<const float*> DecodeGraphs::step(std::vector<BatchSequence> encoder,
                                        std::vector<BatchSequence> decoder) {
  arena_.reset();
  replayed_ = false;
  const StepShape shape = shape_of(encoder);
  const Inputs inputs = place_inputs(shape, std::move(encoder), std::move(decoder));
  const uint64_t generation = arena_.generation();
  auto found = recordings_.find(shape);
  if (found != recordings_.end() && found->second.generation != generation) {
    recordings_.clear();
    found = recordings_.end();
  }
  const auto launched = launched_.find(shape);
  if (found == recordings_.end() && !refused_ && launched != launched_.end() &&
      launched->second == generation) {
    auto recording = record(inputs);
    if (recording && recording->generation == generation) {
      if (recordings_.size() >= kMostRecordings) recordings_.clear();
      found = recordings_.emplace(shape, std::move(*recording)).first;
    } else {
      refused_ = !recording;
    }
  }
  if (found == recordings_.end()) {
    // Launched one by one, which also brings the workspace to its size.
    auto logits = run(inputs, [&](LayerId layer) { return fetch_engram(layer, inputs); });
    if (!logits) return logits;
    launched_[shape] = arena_.generation();
    return logits;
  }
  replayed_ = true;
  // What is allocated from here on lies behind what the launches use.
  arena_.rewind(found->second.end);
  for (const Segment& segment : found->second.segments) {
    if (segment.engram) CEDAR_CHECK_OK(fetch_engram(*segment.engram, inputs));
    CEDAR_CHECK_OK(segment.launches.replay(ctx_.cuda_stream));
  }
  return found->second.logits;
}

}  // namespace cedar::engine
