// The verification proper: every stage of every layer on its recorded input, layers in order, so that a layer
// which reads another one's cache, list or pool reads what its owner made of recorded inputs.

#include <algorithm>
#include <map>

#include "core/units.h"
#include "engine/verify/cache_rows.h"
#include "engine/verify/checks.h"
#include "engine/verify/routing.h"
#include "engine/verify/runs.h"
#include "engine/verify/selection.h"
#include "kernels/hyper_connection.h"

namespace cedar::engine::verify {
namespace {

constexpr CacheKinds kStageCaches = {kStageWindow, kStageMainKv, kStageIndexKeys, kStageOpenGroup};

/// What layers.safetensors holds of one layer; null where it does not.
struct LayerVectors {
  const TensorView* engram_in = nullptr;
  const TensorView* in = nullptr;
  const TensorView* pre_mix_in = nullptr;
  const TensorView* attn_in = nullptr;
  const TensorView* attn_out = nullptr;
  const TensorView* ffn_in = nullptr;
  const TensorView* ffn_out = nullptr;
  const TensorView* out = nullptr;
  const TensorView* pre_mix_out = nullptr;
};

class StageChecks {
 public:
  StageChecks(Session& session, GoldenFile& file, const Prompt& prompt, Frame& frame)
      : session_(session), file_(file), prompt_(prompt), frame_(frame) {}

  void run() {
    for (LayerId layer = 0; layer < session_.layer_count(); ++layer) {
      const LayerVectors v = vectors(layer);
      name_ = prompt_.name + ".layer" + std::to_string(layer) + ".";
      frame_.recorder.clear();
      if (layer == 0) check_embed(v);
      if (v.engram_in != nullptr && v.in != nullptr) check_engram(layer, v);
      if (v.in != nullptr && v.pre_mix_in != nullptr) check_mixes(layer, v);
      if (v.attn_in != nullptr) check_attention(layer, v);
      if (v.ffn_in != nullptr) check_ffn(layer, v);
      if (v.in != nullptr) keep_main_hidden(layer, v);
      if (layer + 1 == session_.layer_count()) check_head(v);
    }
    check_caches(session_, frame_.store(), frame_.sequence.slot(), prompt_, kStageCaches);
    check_main_hidden();
  }

 private:
  Report& report() { return session_.report(); }
  const model::ModelConfig& config() const { return session_.config(); }
  int64_t rows() const { return prompt_.length(); }
  const model::LayerPlan& plan(LayerId layer) const {
    return session_.model().plan.layers[static_cast<size_t>(layer)];
  }

  LayerVectors vectors(LayerId layer) {
    const std::string base = prompt_.name + ".layer" + std::to_string(layer) + ".";
    const std::vector<int64_t> stream = {rows(), config().hc_mult, config().hidden_size};
    const std::vector<int64_t> row = {rows(), config().hidden_size};
    const std::vector<int64_t> mix = {rows(), config().hc_mult};
    LayerVectors v;
    if (plan(layer).has_engram) {
      v.engram_in = file_.tensor(base + "engram_in", DType::bf16, stream);
    }
    v.in = file_.tensor(base + "in", DType::bf16, stream);
    v.pre_mix_in = file_.tensor(base + "pre_mix_in", DType::f32, mix);
    v.attn_in = file_.tensor(base + "attn_in", DType::bf16, row);
    v.attn_out = file_.tensor(base + "attn_out", DType::bf16, row);
    v.ffn_in = file_.tensor(base + "ffn_in", DType::bf16, row);
    v.ffn_out = file_.tensor(base + "ffn_out", DType::bf16, row);
    v.out = file_.tensor(base + "out", DType::bf16, stream);
    v.pre_mix_out = file_.tensor(base + "pre_mix_out", DType::f32, mix);
    return v;
  }

  void compare(const Kind& kind, const char* what, const std::vector<float>& found,
               const TensorView* expected) {
    if (expected != nullptr) {
      report().check(kind, relative_l2(found, floats(*expected)), name_ + what);
    }
  }
  /// False, and failed, when the engine refused.
  bool succeeded(const Kind& kind, const char* what, const Status& status) {
    if (!status) report().fail(kind, name_ + what, status.error());
    return status.has_value();
  }

  void check_embed(const LayerVectors& v) {
    const TensorView* first = v.engram_in != nullptr ? v.engram_in : v.in;
    if (first == nullptr) return;
    const auto state = frame_.forward.embed(frame_.batch);
    if (!state) return report().fail(kStageEmbed, name_ + "embed", state.error());
    report().check(
        kStageEmbed,
        count_different(widened_output(frame_.ctx(), state->x, first->elements()), floats(*first)),
        name_ + "embed");
  }

  void check_engram(LayerId layer, const LayerVectors& v) {
    ArenaScope scope(*frame_.ctx().arena);
    Bf16* x = input<Bf16>(frame_.ctx(), *v.engram_in);
    if (!succeeded(kStageEngram, "engram", frame_.forward.engram(layer, frame_.batch, x))) return;
    compare(kStageEngram, "in (after Engram)", widened_output(frame_.ctx(), x, v.in->elements()),
            v.in);
  }

  /// Both sublayers' hyper-connections, with the recorded sublayer outputs in between.
  void check_mixes(LayerId layer, const LayerVectors& v) {
    kernels::KernelContext& ctx = frame_.ctx();
    ArenaScope scope(*ctx.arena);
    const LayerWeights& w = *session_.model().layers[static_cast<size_t>(layer)];
    StreamState state;
    state.x = input<Bf16>(ctx, *v.in);
    state.pre = input<float>(ctx, *v.pre_mix_in);
    const auto replay = [&](const char* what, const TensorView* recorded_in,
                            const TensorView* recorded_out) {
      return [this, what, recorded_in, recorded_out](const SublayerInput& in,
                                                     SublayerEnd& end) -> Status {
        kernels::KernelContext& device = frame_.ctx();
        compare(kStageMixIn, what, widened_output(device, in.u, rows() * config().hidden_size),
                recorded_in);
        const auto values = recorded_out->as<Bf16>();
        return copy_to_device(device.device, end.y, values.data(),
                              static_cast<int64_t>(values.size_bytes()), device.cuda_stream);
      };
    };
    if (v.attn_out == nullptr) return;
    if (!succeeded(kStageMixIn, "attn_in",
                   run_sublayer(ctx, config(), w.hc_attn, w.attn_norm, state, rows(),
                                replay("attn_in", v.attn_in, v.attn_out)))) {
      return;
    }
    if (v.ffn_out == nullptr) return;
    if (!succeeded(kStageMixOut, "out",
                   run_sublayer(ctx, config(), w.hc_ffn, w.ffn_norm, state, rows(),
                                replay("ffn_in", v.ffn_in, v.ffn_out)))) {
      return;
    }
    compare(kStageMixOut, "out", widened_output(ctx, state.x, v.in->elements()), v.out);
    compare(kStagePreMix, "pre_mix_out", output(ctx, state.pre, v.pre_mix_in->elements()),
            v.pre_mix_out);
  }

  /// The recorded list and pool are part of the input of the layers that read them: those that differ from
  /// them only by a tie would otherwise show as an error of the attention.
  void pin_recorded(LayerId layer) {
    GoldenFile* selection = session_.golden().file("selection");
    if (selection == nullptr || !plan(layer).scores()) return;
    const int64_t columns = rows() / plan(layer).ratio;
    const int64_t k = std::min(config().index_topk, columns);
    const TensorView* list = selection->tensor(name_ + "topk", DType::i32, {rows(), k});
    if (list != nullptr)
      frame_.shared.pin(layer, SharedTopk{upload(frame_.ctx(), list->as<int32_t>()), k});
    if (!plan(layer).makes_candidates) return;
    const TensorView* pool =
        selection->tensor(prompt_.name + ".candidates", DType::boolean, {rows(), columns});
    if (pool == nullptr) return;
    const std::vector<uint32_t> words = pool_words(integers(*pool), columns);
    frame_.shared.pin(layer, SharedCandidates{upload(frame_.ctx(), words), ceil_div(columns, 32)});
  }

  void check_attention(LayerId layer, const LayerVectors& v) {
    // No scope: lists and pools that later layers read stay in the workspace.
    kernels::KernelContext& ctx = frame_.ctx();
    Bf16* u = input<Bf16>(ctx, *v.attn_in);
    Bf16* y = ctx.arena->allocate<Bf16>(v.attn_in->elements());
    pin_recorded(layer);
    if (!succeeded(kStageAttention, "attn_out",
                   frame_.forward.attention(layer, frame_.batch, frame_.shared, u, y))) {
      return;
    }
    compare(kStageAttention, "attn_out", widened_output(ctx, y, v.attn_in->elements()), v.attn_out);
    if (plan(layer).scores()) check_selected(layer);
  }

  void check_selected(LayerId layer) {
    GoldenFile* selection = session_.golden().file("selection");
    const int64_t columns = rows() / plan(layer).ratio;
    const int64_t k = std::min(config().index_topk, columns);
    if (selection == nullptr || columns == 0) return;
    const ScoreTable& scores = frame_.recorder.scores[layer];
    const TensorView* expected = selection->tensor(name_ + "score", DType::f32, {rows(), columns});
    if (expected != nullptr) {
      check_scores(report(), kStageScores, name_ + "score", score_rows(scores, rows(), columns),
                   floats(*expected));
    }
    const TensorView* list = selection->tensor(name_ + "topk", DType::i32, {rows(), k});
    if (list != nullptr) {
      check_lists(report(), kStageTopk, name_ + "topk", frame_.recorder.topk[layer],
                  Lists{integers(*list), k}, scores.view(), kTieSteps);
    }
    if (!plan(layer).makes_candidates) return;
    const TensorView* pool =
        selection->tensor(prompt_.name + ".candidates", DType::boolean, {rows(), columns});
    if (pool == nullptr) return;
    check_pools(
        report(), kStageCandidates, prompt_.name + ".candidates",
        pool_rows(frame_.recorder.pools[layer], frame_.recorder.pool_words[layer], rows(), columns),
        integers(*pool), columns, config().candidate_block_size, scores.view(), kTieSteps);
  }

  void check_ffn(LayerId layer, const LayerVectors& v) {
    kernels::KernelContext& ctx = frame_.ctx();
    ArenaScope scope(*ctx.arena);
    Bf16* u = input<Bf16>(ctx, *v.ffn_in);
    Bf16* y = ctx.arena->allocate<Bf16>(v.ffn_in->elements());
    if (!succeeded(kStageFfn, "ffn_out", frame_.forward.ffn(layer, frame_.batch, u, y))) return;
    compare(kStageFfn, "ffn_out", widened_output(ctx, y, v.ffn_in->elements()), v.ffn_out);
    GoldenFile* selection = session_.golden().file("selection");
    if (selection == nullptr) return;
    const TensorView* experts =
        selection->tensor(name_ + "experts", DType::i32, {rows(), config().num_experts_per_tok});
    if (experts == nullptr) return;
    check_routing(session_, kStageExperts, name_ + "experts", layer, v.ffn_in->as<Bf16>().data(),
                  frame_.recorder.routing[layer].experts, integers(*experts));
  }

  void keep_main_hidden(LayerId layer, const LayerVectors& v) {
    if (!plan(layer).is_draft_target) return;
    kernels::KernelContext& ctx = frame_.ctx();
    ArenaScope scope(*ctx.arena);
    kernels::HcMeanParams mean;
    mean.x = input<Bf16>(ctx, *v.in);
    mean.y = ctx.arena->allocate<Bf16>(rows() * config().hidden_size);
    mean.y_stride = config().hidden_size;
    mean.rows = rows();
    mean.copies = config().hc_mult;
    mean.d = config().hidden_size;
    if (!succeeded(kStageMainHidden, "mean", kernels::hc_mean(ctx, mean))) return;
    target_means_[layer] = widened_output(ctx, mean.y, rows() * config().hidden_size);
  }

  /// The last row of every target layer, side by side.
  void check_main_hidden() {
    GoldenFile* file = session_.golden().file("caches");
    const int64_t d = config().hidden_size;
    const std::vector<LayerId>& targets = config().dspark_target_layer_ids;
    const std::string name = prompt_.name + ".main_hidden_last";
    if (file == nullptr || target_means_.size() != targets.size() || targets.empty()) return;
    const TensorView* expected = file->tensor(name, DType::bf16, {std::ssize(targets) * d});
    if (expected == nullptr) return;
    std::vector<float> found;
    for (LayerId layer : targets) {
      const std::vector<float>& values = target_means_[layer];
      found.insert(found.end(), values.end() - d, values.end());
    }
    report().check(kStageMainHidden, relative_l2(found, floats(*expected)), name);
  }

  void check_head(const LayerVectors& v) {
    GoldenFile* file = session_.golden().file("logits");
    if (file == nullptr || v.out == nullptr || v.pre_mix_out == nullptr) return;
    const TensorView* expected =
        file->tensor(prompt_.name + ".last_logits", DType::f32, {config().vocab_size});
    if (expected == nullptr) return;
    kernels::KernelContext& ctx = frame_.ctx();
    StreamState state;
    state.x = input<Bf16>(ctx, *v.out);
    state.pre = input<float>(ctx, *v.pre_mix_out);
    const std::vector<int32_t> last = {static_cast<int32_t>(rows() - 1)};
    const auto logits = frame_.forward.logits(state, upload(ctx, last), 1);
    if (!logits) return report().fail(kStageHead, name_ + "logits", logits.error());
    compare(kStageHead, "last_logits", output(ctx, *logits, config().vocab_size), expected);
  }

  Session& session_;
  GoldenFile& file_;
  const Prompt& prompt_;
  Frame& frame_;
  std::string name_;  // "p73.layer4."
  std::map<LayerId, std::vector<float>> target_means_;
};

/// Prompts of which layers.safetensors has stage inputs, not outputs alone.
bool has_stages(const GoldenFile& file, const Prompt& prompt) {
  return !file.layer_tensors(prompt.name + ".", "in").empty() ||
         !file.layer_tensors(prompt.name + ".", "attn_in").empty() ||
         !file.layer_tensors(prompt.name + ".", "ffn_in").empty();
}

}  // namespace

void check_stages(Session& session) {
  GoldenFile* file = session.golden().file("layers");
  if (file == nullptr) return session.report().skip("stage", "layers.safetensors is absent");
  bool any = false;
  for (const Prompt& prompt : session.prompts()) {
    if (!has_stages(*file, prompt)) continue;
    any = true;
    session.progress("stage", prompt.name);
    auto frame = Frame::open(session, prompt.tokens);
    if (!frame) {
      session.report().fail(kStageAttention, prompt.name, frame.error());
      continue;
    }
    StageChecks(session, *file, prompt, **frame).run();
  }
  if (!any) session.report().skip("stage", "layers.safetensors has no stage inputs");
}

}  // namespace cedar::engine::verify
