#include "model/footprint.h"

namespace cedar::model {
namespace {

constexpr int64_t kBf16Bytes = 2;
constexpr int64_t kF32Bytes = 4;
constexpr int64_t kIdBytes = 4;

bool is_lookup(TensorGroup group) {
  return group == TensorGroup::embed || group == TensorGroup::engram_tables;
}

/// Of a routed expert's parameters, the share that an average token uses.
int64_t active_parameters(const ExpectedTensor& tensor, const ModelConfig& config) {
  if (is_lookup(tensor.group)) return 0;
  if (!tensor.routed_expert) return tensor.parameters();
  return tensor.parameters() * config.num_experts_per_tok / config.n_routed_experts;
}

void add_to_group(std::vector<GroupTotals>& groups, const ExpectedTensor& tensor) {
  for (GroupTotals& entry : groups) {
    if (entry.group == tensor.group) return entry.totals.add(tensor);
  }
  groups.push_back({tensor.group, {}});
  groups.back().totals.add(tensor);
}

void add_tensor(Footprint& out, const ExpectedTensor& tensor, const ModelConfig& config) {
  out.all.add(tensor);
  add_to_group(out.groups, tensor);
  if (tensor.group == TensorGroup::engram_tables) return out.engram_tables.add(tensor);
  if (tensor.group == TensorGroup::drafter) return out.drafter.add(tensor);
  if (tensor.encoder) {
    out.encoder.add(tensor);
    out.active_prefill_parameters += active_parameters(tensor, config);
  }
  if (tensor.decoder) {
    out.decoder.add(tensor);
    out.active_decode_parameters += active_parameters(tensor, config);
  }
}

HandoffBytes handoff_bytes(const ModelConfig& c, const ModelPlan& plan,
                           int64_t layer_window_bytes) {
  HandoffBytes bytes;
  bytes.encoder_windows = plan.encoder_layers() * layer_window_bytes;
  for (const KvSource& source : plan.kv_sources) {
    bytes.open_groups += (source.ratio - 1) * 2 * c.head_dim * kF32Bytes;  // value and gate
  }
  const int64_t row = c.hc_mult * (c.hidden_size * kBf16Bytes + kF32Bytes);
  bytes.boundary_rows = c.sliding_window * row;
  if (!c.engram_layer_ids.empty()) bytes.ngram_history = (c.engram_max_ngram_size - 1) * kIdBytes;
  return bytes;
}

}  // namespace

void TensorTotals::add(const ExpectedTensor& tensor) {
  ++tensors;
  bytes += tensor.bytes();
  parameters += tensor.parameters();
}

Footprint make_footprint(const ModelConfig& config, const ModelPlan& plan) {
  Footprint out;
  for (const ExpectedTensor& tensor : expected_tensors(config, plan))
    add_tensor(out, tensor, config);
  out.kv = make_kv_layout(config, plan);
  out.layer_window_bytes = config.sliding_window * out.kv.window_row_bytes;
  out.window_bytes = config.num_hidden_layers * out.layer_window_bytes;
  out.drafter_window_bytes = config.num_nextn_predict_layers * out.layer_window_bytes;
  out.handoff = handoff_bytes(config, plan, out.layer_window_bytes);
  return out;
}

}  // namespace cedar::model
