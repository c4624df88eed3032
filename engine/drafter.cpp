#include "engine/drafter.h"

#include <algorithm>
#include <string>

#include "engine/upload.h"
#include "kernels/embed.h"
#include "kernels/hyper_connection.h"
#include "kernels/kv_write.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"

namespace cedar::engine {
namespace {

Status norm_rows(kernels::KernelContext& ctx, const Bf16* x, const DeviceTensor& weight, Bf16* y,
                 int64_t rows, int64_t columns, float eps) {
  kernels::RmsNormParams p;
  p.x = x;
  p.x_stride = columns;
  p.weight = weight.as<Bf16>();
  p.y = y;
  p.y_stride = columns;
  p.rows = rows;
  p.columns = columns;
  p.eps = eps;
  return kernels::rms_norm(ctx, p);
}

}  // namespace

Status Drafter::observe(const StepBatch& batch, const Bf16* main_hidden) {
  ArenaScope scope(*ctx_.arena);
  const model::ModelConfig& config = model_.config;
  const DrafterWeights& w = *model_.drafter;
  const int64_t inputs = w.main_proj.in;
  Bf16* main_x = ctx_.arena->allocate<Bf16>(batch.rows * config.hidden_size);
  kernels::LinearParams project;
  project.weight = &w.main_proj;
  CEDAR_TRY(project.xq, kernels::quantize_q8(ctx_, main_hidden, batch.rows, inputs));
  project.y = main_x;
  project.y_stride = config.hidden_size;
  project.rows = batch.rows;
  CEDAR_CHECK_OK(kernels::linear(ctx_, project));
  CEDAR_CHECK_OK(norm_rows(ctx_, main_x, w.main_norm, main_x, batch.rows, config.hidden_size,
                           config.rms_norm_eps));
  CEDAR_TRY(const kernels::Q8Rows xq,
            kernels::quantize_q8(ctx_, main_x, batch.rows, config.hidden_size));
  for (size_t stage = 0; stage < w.stages.size(); ++stage) {
    ArenaScope stage_scope(*ctx_.arena);
    CEDAR_TRY(const uint8_t* rows, window_rows(ctx_, config, w.stages[stage], xq, batch.positions,
                                               model_.inv_freq_window.as<float>(), batch.rows));
    kernels::RingWriteParams keep;
    keep.rings = store_.extra_rings(static_cast<int64_t>(stage));
    keep.chunk_rows = rows;
    keep.slots = batch.ring_slots;
    keep.positions = batch.positions;
    keep.rows = batch.rows;
    CEDAR_CHECK_OK(kernels::ring_write(ctx_, keep));
  }
  return {};
}

Drafter::Rows Drafter::block_rows(const std::vector<DraftRequest>& requests) {
  const model::ModelConfig& config = model_.config;
  const int64_t block = config.dspark_block_size;
  std::vector<int32_t> ids;
  std::vector<int64_t> positions;
  std::vector<kernels::WindowSpan> spans;
  for (size_t r = 0; r < requests.size(); ++r) {
    const DraftRequest& request = requests[r];
    kernels::WindowSpan span;
    span.slot = request.slot.value;
    span.ring_begin = std::max(request.window_floor, request.position + 1 - config.sliding_window);
    span.ring_end = request.position + 1;
    span.chunk_begin = static_cast<int32_t>(static_cast<int64_t>(r) * block);
    span.chunk_end = static_cast<int32_t>(static_cast<int64_t>(r + 1) * block);
    for (int64_t k = 0; k < block; ++k) {
      ids.push_back(k == 0 ? request.next : config.dspark_noise_token_id);
      positions.push_back(request.position + 1 + k);
      spans.push_back(span);  // every query sees the whole block: no causal mask here
    }
  }
  Rows rows;
  rows.count = static_cast<int64_t>(ids.size());
  rows.ids = upload(ctx_, ids);
  rows.positions = upload(ctx_, positions);
  rows.spans = upload(ctx_, spans);
  return rows;
}

Status Drafter::run_stages(const Rows& rows, StreamState& state) {
  const model::ModelConfig& config = model_.config;
  for (size_t stage = 0; stage < model_.drafter->stages.size(); ++stage) {
    const LayerWeights& w = model_.drafter->stages[stage];
    const auto attention = [&](const SublayerInput& input, SublayerEnd& end) -> Status {
      AttendInput in;
      in.inv_freq = model_.inv_freq_window.as<float>();
      in.positions = rows.positions;
      in.rows = rows.count;
      in.rings = store_.extra_rings(static_cast<int64_t>(stage));
      in.spans = rows.spans;
      CEDAR_TRY(const Projections projections,
                project(ctx_, config, w, input, rows.positions, in.inv_freq, rows.count));
      in.projections = &projections;
      return attend(ctx_, config, w, in, end.y);
    };
    const auto experts = [&](const SublayerInput& input, SublayerEnd& end) -> Status {
      CEDAR_TRY([[maybe_unused]] const RoutedExperts routed,
                feed_forward(ctx_, config, w, config.dspark_num_experts_per_tok, nullptr, input,
                             rows.count, end));
      return {};
    };
    CEDAR_CHECK_OK(
        run_sublayer(ctx_, config, w.hc_attn, w.attn_norm, state, rows.count, attention));
    CEDAR_CHECK_OK(run_sublayer(ctx_, config, w.hc_ffn, w.ffn_norm, state, rows.count, experts));
  }
  return {};
}

Result<std::vector<Draft>> Drafter::propose(const std::vector<DraftRequest>& requests) {
  ArenaScope scope(*ctx_.arena);
  const model::ModelConfig& config = model_.config;
  const int64_t copies = config.hc_mult;
  const int64_t d = config.hidden_size;
  const Rows rows = block_rows(requests);
  StreamState state;
  state.x = ctx_.arena->allocate<Bf16>(rows.count * copies * d);
  kernels::EmbedParams embed;
  embed.table = model_.embed.as<Bf16>();
  embed.ids = rows.ids;
  embed.x = state.x;
  embed.rows = rows.count;
  embed.copies = copies;
  embed.d = d;
  CEDAR_CHECK_OK(kernels::embed(ctx_, embed));
  std::vector<float> identity(static_cast<size_t>(rows.count * copies), 0.0F);
  for (int64_t i = 0; i < rows.count; ++i) identity[static_cast<size_t>(i * copies)] = 1.0F;
  state.pre = upload(ctx_, identity);
  CEDAR_CHECK_OK(run_stages(rows, state));

  Bf16* u = ctx_.arena->allocate<Bf16>(rows.count * d);
  Bf16* z = ctx_.arena->allocate<Bf16>(rows.count * d);
  kernels::HcCollapseParams collapse;
  collapse.x = state.x;
  collapse.pre = state.pre;
  collapse.norm_weight = model_.drafter->norm.as<Bf16>();
  collapse.norm_eps = config.rms_norm_eps;
  collapse.u = z;
  collapse.raw = u;
  collapse.rows = rows.count;
  collapse.copies = copies;
  collapse.d = d;
  CEDAR_CHECK_OK(kernels::hc_collapse(ctx_, collapse));
  float* logits = ctx_.arena->allocate<float>(rows.count * config.vocab_size);
  kernels::LinearParams head;
  head.weight = &*model_.head;
  head.x = z;
  head.x_stride = d;
  head.y = logits;
  head.y_stride = config.vocab_size;
  head.y_dtype = DType::f32;
  head.rows = rows.count;
  CEDAR_CHECK_OK(kernels::linear(ctx_, head));
  return chain(requests, u, logits);
}

Result<std::vector<Draft>> Drafter::chain(const std::vector<DraftRequest>& requests, const Bf16* u,
                                          const float* logits) {
  const model::ModelConfig& config = model_.config;
  const DrafterWeights& w = *model_.drafter;
  const auto count = static_cast<int64_t>(requests.size());
  const int64_t block = config.dspark_block_size;
  const int64_t vocab = config.vocab_size;
  const int64_t rank = config.dspark_markov_rank;
  const int64_t d = config.hidden_size;
  CEDAR_TRY(const auto host_logits, HostValues<float>::read(ctx_, logits, count * block * vocab));
  std::vector<Draft> drafts(requests.size());
  std::vector<int32_t> previous;
  for (const DraftRequest& request : requests) previous.push_back(request.next);
  Bf16* m = ctx_.arena->allocate<Bf16>(count * rank);
  float* bias = ctx_.arena->allocate<float>(count * vocab);
  Bf16* judged = ctx_.arena->allocate<Bf16>(count * (d + rank));
  float* confidence = ctx_.arena->allocate<float>(count);
  for (int64_t k = 0; k < block; ++k) {
    ArenaScope scope(*ctx_.arena);
    kernels::GatherRowsParams gather;
    gather.src = w.markov_embed.as<Bf16>();
    gather.index = upload(ctx_, previous);
    gather.dst = m;
    gather.rows = count;
    gather.row_bytes = rank * int64_t{2};
    CEDAR_CHECK_OK(kernels::gather_rows(ctx_, gather));
    kernels::LinearParams markov;
    markov.weight = &w.markov_head;
    markov.x = m;
    markov.x_stride = rank;
    markov.y = bias;
    markov.y_stride = vocab;
    markov.y_dtype = DType::f32;
    markov.rows = count;
    CEDAR_CHECK_OK(kernels::linear(ctx_, markov));
    const auto copy_row = [&](Bf16* to, const Bf16* from, int64_t columns) {
      return copy_on_device(ctx_.device, to, from, columns * int64_t{2}, ctx_.cuda_stream);
    };
    for (int64_t r = 0; r < count; ++r) {
      Bf16* row = judged + r * (d + rank);
      CEDAR_CHECK_OK(copy_row(row, u + (r * block + k) * d, d));
      CEDAR_CHECK_OK(copy_row(row + d, m + r * rank, rank));
    }
    kernels::LinearParams judge;
    judge.weight = &w.confidence;
    judge.x = judged;
    judge.x_stride = d + rank;
    judge.y = confidence;
    judge.y_stride = 1;
    judge.y_dtype = DType::f32;
    judge.rows = count;
    CEDAR_CHECK_OK(kernels::linear(ctx_, judge));
    CEDAR_TRY(const auto host_bias, HostValues<float>::read(ctx_, bias, count * vocab));
    CEDAR_TRY(const auto host_confidence, HostValues<float>::read(ctx_, confidence, count));
    for (int64_t r = 0; r < count; ++r) {
      const float* base = host_logits.data() + (r * block + k) * vocab;
      std::vector<float> row(base, base + vocab);
      for (int64_t v = 0; v < vocab; ++v) {
        row[static_cast<size_t>(v)] += host_bias[r * vocab + v];
      }
      const auto token =
          static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin());
      Draft& draft = drafts[static_cast<size_t>(r)];
      draft.tokens.push_back(token);
      draft.confidence.push_back(host_confidence[r]);
      draft.logits.push_back(std::move(row));
      previous[static_cast<size_t>(r)] = token;
    }
  }
  return drafts;
}

}  // namespace cedar::engine
