#pragma once
// Every kind of comparison that verification makes, with its limit: the table of the golden data's README
// ("How close is close enough") as code. A kind's name is its group, a dot, and what is compared.

#include <cstdint>
#include <string_view>

namespace cedar::engine::verify {

enum class Measure : uint8_t {
  different,    // number of values that differ
  relative_l2,  // |a - b| / |b| over the whole tensor
  bf16_steps,   // largest distance of one element in steps of bf16 (compare.h)
  share,        // differing list entries / all list entries
};

struct Kind {
  std::string_view name;
  Measure measure = Measure::different;
  double limit = 0;
};

constexpr Kind equal(std::string_view name) { return {name, Measure::different, 0}; }
constexpr Kind within(std::string_view name, double limit) {
  return {name, Measure::relative_l2, limit};
}
constexpr Kind steps(std::string_view name, double limit) {
  return {name, Measure::bf16_steps, limit};
}
constexpr Kind share(std::string_view name, double limit) { return {name, Measure::share, limit}; }

// Limits of the table.
constexpr double kTableLimit = 1e-5;      // sinkhorn, rotary tables near and applied
constexpr double kFarTableLimit = 1e-2;   // rotary tables beyond kNearPositions
constexpr double kGemmLimit = 4e-3;       // single bf16 operations
constexpr double kTieSteps = 2;           // scores that may change places, and single elements
constexpr double kAttentionLimit = 0.03;  // one attention on its recorded input
constexpr double kStageLimit = 0.005;     // one feed-forward, one cache
constexpr double kMixLimit = 2e-4;        // hyper-connections
constexpr double kWholeRunLimit = 0.10;   // a whole run: a last line that proves little alone
constexpr int64_t kNearPositions = 4095;
// The table has no limit for what a whole run selects. Measured on mini: a correct run differs by up to 0.15
// in scores and 0.14 in lists; layers that score a wrong owner's index keys by 0.75 to 1.7 in scores, and by
// 0.37 to 0.57 in lists where not every row is chosen.
constexpr double kRunSelectionLimit = 0.25;
// Nor for confidences behind a whole run: on the demo model they differ by up to 0.23.
constexpr double kRunConfidenceLimit = 0.30;

// --- units: single operations on random input
inline constexpr Kind kActQuant = equal("units.act_quant");
inline constexpr Kind kFp4E8m0 = equal("units.fp4_e8m0");
inline constexpr Kind kFp4E4m3 = equal("units.fp4_e4m3");
inline constexpr Kind kE4m3Table = equal("units.e4m3_table");
inline constexpr Kind kFp8Gemm = within("units.fp8_gemm", kGemmLimit);
inline constexpr Kind kFp8GemmSteps = steps("units.fp8_gemm_element", kTieSteps);
inline constexpr Kind kFp4Gemm = within("units.fp4_gemm", kGemmLimit);
inline constexpr Kind kFp4GemmSteps = steps("units.fp4_gemm_element", kTieSteps);
inline constexpr Kind kSinkhorn = within("units.sinkhorn", kTableLimit);
inline constexpr Kind kRopeTable = within("units.rope_table", kTableLimit);
inline constexpr Kind kRopeTableFar = within("units.rope_table_far", kFarTableLimit);
inline constexpr Kind kRopeApply = within("units.rope_apply", kTableLimit);
inline constexpr Kind kSparseAttention = within("units.sparse_attn", kGemmLimit);
inline constexpr Kind kSparseAttentionSteps = steps("units.sparse_attn_element", kTieSteps);
inline constexpr Kind kCandidateUnit = equal("units.candidates");
inline constexpr Kind kGateExperts = equal("units.gate_experts");
inline constexpr Kind kGateWeights = within("units.gate_weights", kTableLimit);
inline constexpr Kind kEngramTables = equal("units.engram_tables");
inline constexpr Kind kEngramUnit = within("units.engram_unit", kGemmLimit);
inline constexpr Kind kEngramUnitSteps = steps("units.engram_unit_element", kTieSteps);

// --- manifest: what needs no tensor
inline constexpr Kind kTokenizerIds = equal("manifest.tokenizer_ids");
inline constexpr Kind kTokenizerText = equal("manifest.tokenizer_text");
inline constexpr Kind kReleaseEngram = equal("manifest.release_engram");
inline constexpr Kind kImageGrid = equal("manifest.image_grid");

// --- selection: discrete choices on given scores
inline constexpr Kind kHashIds = equal("selection.hash_ids");
inline constexpr Kind kTopkOnScores = equal("selection.topk_on_scores");
inline constexpr Kind kCandidatesOnScores = equal("selection.candidates_on_scores");

// --- stages on their recorded inputs
inline constexpr Kind kStageEmbed = equal("stage.embed");
inline constexpr Kind kStageEngram = within("stage.engram", kGemmLimit);
inline constexpr Kind kStageMixIn = within("stage.mhc_in", kMixLimit);
inline constexpr Kind kStageMixOut = within("stage.mhc_out", kMixLimit);
inline constexpr Kind kStagePreMix = within("stage.mhc_pre_mix", kMixLimit);
inline constexpr Kind kStageAttention = within("stage.attention", kAttentionLimit);
inline constexpr Kind kStageScores = within("stage.index_scores", kAttentionLimit);
inline constexpr Kind kStageTopk = equal("stage.topk");
inline constexpr Kind kStageCandidates = equal("stage.candidates");
inline constexpr Kind kStageFfn = within("stage.ffn", kStageLimit);
inline constexpr Kind kStageExperts = equal("stage.experts");
inline constexpr Kind kStageWindow = within("stage.window_kv", kStageLimit);
inline constexpr Kind kStageMainKv = within("stage.main_kv", kStageLimit);
inline constexpr Kind kStageIndexKeys = within("stage.index_k", kStageLimit);
inline constexpr Kind kStageOpenGroup = within("stage.open_group", kStageLimit);
inline constexpr Kind kStageMainHidden = within("stage.main_hidden", kMixLimit);
inline constexpr Kind kStageHead = within("stage.head", kStageLimit);

// --- whole runs through the public runner
inline constexpr Kind kRunLogits = within("run.logits", kWholeRunLimit);
inline constexpr Kind kGreedyIds = equal("run.greedy_ids");
inline constexpr Kind kGreedyLogits = within("run.greedy_logits", kWholeRunLimit);

// --- whole runs that read recorded lists and pools (guided_run.h)
inline constexpr Kind kGuidedLogits = within("guided.logits", kWholeRunLimit);
inline constexpr Kind kGuidedLayers = within("guided.layer_out", kWholeRunLimit);
inline constexpr Kind kGuidedWindow = within("guided.window_kv", kWholeRunLimit);
inline constexpr Kind kGuidedMainKv = within("guided.main_kv", kWholeRunLimit);
inline constexpr Kind kGuidedIndexKeys = within("guided.index_k", kWholeRunLimit);
inline constexpr Kind kGuidedOpenGroup = within("guided.open_group", kWholeRunLimit);
inline constexpr Kind kGuidedMainHidden = within("guided.main_hidden", kWholeRunLimit);
inline constexpr Kind kGuidedScores = within("guided.index_scores", kRunSelectionLimit);
inline constexpr Kind kGuidedTopk = share("guided.topk", kRunSelectionLimit);
inline constexpr Kind kGuidedCandidates = share("guided.candidates", kRunSelectionLimit);
inline constexpr Kind kGuidedExperts = share("guided.experts", kWholeRunLimit);
inline constexpr Kind kGuidedExpertWeights = within("guided.expert_weights", kWholeRunLimit);

// --- decode: single steps on recorded tokens, guided
inline constexpr Kind kDecodeTopkOnScores = equal("decode.topk_on_scores");
inline constexpr Kind kDecodeLogits = within("decode.logits", kWholeRunLimit);
inline constexpr Kind kDecodeLayers = within("decode.layer_out", kWholeRunLimit);
inline constexpr Kind kDecodeScores = within("decode.index_scores", kRunSelectionLimit);
inline constexpr Kind kDecodeTopk = share("decode.topk", kRunSelectionLimit);
inline constexpr Kind kDecodeCandidates = share("decode.candidates", kRunSelectionLimit);

// --- dspark: the drafter on recorded hidden states, and behind a whole run
inline constexpr Kind kDraftWindow = within("dspark.window_kv", kStageLimit);
inline constexpr Kind kDraftIds = equal("dspark.draft_ids");
inline constexpr Kind kDraftLogits = within("dspark.draft_logits", kWholeRunLimit);
inline constexpr Kind kDraftConfidence = within("dspark.confidence", kWholeRunLimit);
inline constexpr Kind kDraftRunIds = equal("dspark.run_draft_ids");
inline constexpr Kind kDraftRunHidden = within("dspark.run_main_hidden", kWholeRunLimit);
inline constexpr Kind kDraftRunWindow = within("dspark.run_window_kv", kWholeRunLimit);

// --- vision
inline constexpr Kind kVisionPixels = equal("vision.pixels");
inline constexpr Kind kVisionPatches = equal("vision.patches");
inline constexpr Kind kVisionGrid = equal("vision.grid");
inline constexpr Kind kVisionTower = within("vision.vit_out", kAttentionLimit);
inline constexpr Kind kVisionAligner = within("vision.aligner_out", kStageLimit);
inline constexpr Kind kVisionSpan = equal("vision.token_types");
inline constexpr Kind kVisionHashIds = equal("vision.hash_ids");
inline constexpr Kind kVisionLogits = within("vision.logits", kWholeRunLimit);
inline constexpr Kind kVisionExperts = share("vision.experts", kWholeRunLimit);

// --- consistency: a prefill against a shorter one and single steps, this engine against itself
inline constexpr Kind kConsistency = equal("consistency.bits");

// --- prompts: a trained checkpoint's prompts.json
inline constexpr Kind kPromptIds = equal("prompts.ids");
inline constexpr Kind kPromptGreedy = equal("prompts.greedy_ids");
inline constexpr Kind kPromptText = equal("prompts.text");
inline constexpr Kind kPromptDrafts = equal("prompts.draft_ids");
inline constexpr Kind kPromptConfidence = within("prompts.confidence", kRunConfidenceLimit);
inline constexpr Kind kPromptLogits = within("prompts.logits", kWholeRunLimit);

// --- the folder itself: tensors that no check read, or of an unexpected shape
inline constexpr Kind kGoldenRead = equal("golden.unread");
inline constexpr Kind kGoldenShape = equal("golden.shape");

}  // namespace cedar::engine::verify
