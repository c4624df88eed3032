#include "model/checkpoint.h"

#include <algorithm>
#include <unordered_map>

#include "model/checkpoint_slots.h"

namespace cedar::model {
namespace {

using SlotMap = std::unordered_map<std::string, CheckpointSlot*>;

bool needed_by(const ExpectedTensor& tensor, Role role) {
  switch (role) {
    case Role::all: return true;
    case Role::encoder: return tensor.encoder;
    case Role::decoder: return tensor.decoder;
  }
  return false;
}

/// Of the tensors that the role needs, those of its part.
bool in_part(const ExpectedTensor& tensor, const Checkpoint& out) {
  const bool begins = out.range.first == 0;
  const bool ends = out.range.last == static_cast<LayerId>(out.plan.layers.size());
  switch (tensor.group) {
    case TensorGroup::embed: return begins || (ends && out.config.num_nextn_predict_layers > 0);
    case TensorGroup::vision: return begins;
    case TensorGroup::head:
    case TensorGroup::drafter: return ends;
    default: break;
  }
  const bool projects = out.role == Role::encoder && tensor.layer == out.plan.boundary &&
                        out.range.last == out.plan.boundary;
  return projects || out.range.contains(tensor.layer);
}

std::string describe(DType dtype, const std::vector<int64_t>& shape) {
  return std::string(to_string(dtype)) + " " + shape_string(shape);
}

/// The first few of a list of names.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

/// Both lists in one message: a renamed tensor shows in both.
Status check_names(const std::string& directory, const std::vector<CheckpointSlot>& slots,
                   const SlotMap& slot_of, const CheckpointFiles& files, Role role) {
  std::vector<std::string> missing;
  for (const CheckpointSlot& slot : slots) {
    const ExpectedTensor& tensor = slot.expected;
    if (!needed_by(tensor, role) || files.tensors.count(tensor.name) != 0) continue;
    missing.push_back(tensor.name + " (" + describe(tensor.dtype, tensor.shape) + ")");
  }
  std::vector<std::string> left_over;
  for (const std::string& name : files.names) {
    if (slot_of.count(name) == 0) left_over.push_back(name);
  }
  if (missing.empty() && left_over.empty()) return {};
  std::string problem = directory + ":";
  if (!missing.empty()) problem += " missing tensors: " + listed(missing);
  if (!left_over.empty()) {
    problem += (missing.empty() ? "" : ";") +
               std::string(" tensors that config.json does not explain: ") + listed(left_over);
  }
  return make_error(Errc::invalid_checkpoint, problem);
}

/// Binds a found tensor to its place. Also checks those that the role will drop again.
Status bind(const CheckpointTensor& found, CheckpointSlot& slot) {
  const ExpectedTensor& expected = slot.expected;
  if (found.view.dtype != expected.dtype || found.view.shape != expected.shape) {
    return make_error(Errc::invalid_checkpoint,
                      expected.name + ": expected " + describe(expected.dtype, expected.shape) +
                          ", found " + describe(found.view.dtype, found.view.shape) + " in " +
                          found.file->path());
  }
  *slot.target = found.view;
  if (expected.dtype == DType::i8) slot.target->dtype = DType::e2m1x2;
  return {};
}

void count(const ExpectedTensor& tensor, Checkpoint& out) {
  ++out.tensor_count;
  out.bytes += tensor.bytes();
  if (tensor.group == TensorGroup::engram_tables) out.engram_table_bytes += tensor.bytes();
}

/// Drops the places of tensors that the part does not hold.
void keep_part(Checkpoint& out) {
  if (out.range.first > 0) {
    out.vision.reset();
    const bool drafts = out.drafter && out.range.last == static_cast<LayerId>(out.layers.size());
    if (!drafts) out.embed = {};
  }
  if (out.range.last < static_cast<LayerId>(out.layers.size())) {
    out.drafter.reset();
    out.norm = {};
    out.head = {};
  }
  for (size_t i = 0; i < out.layers.size(); ++i) {
    const auto layer = static_cast<LayerId>(i);
    const bool projects = out.role == Role::encoder && layer == out.plan.boundary &&
                          out.range.last == out.plan.boundary;
    if (!projects && !out.range.contains(layer)) out.layers[i].reset();
  }
}

/// Drops the places of tensors that the role does not hold.
void keep_role(Checkpoint& out) {
  if (out.role == Role::all) return;
  out.vision.reset();
  if (out.role == Role::decoder) return;
  out.drafter.reset();
  out.norm = {};
  out.head = {};
  for (size_t i = static_cast<size_t>(out.plan.boundary); i < out.layers.size(); ++i) {
    LayerTensors whole = std::move(*out.layers[i]);
    out.layers[i].reset();
    if (static_cast<LayerId>(i) != out.plan.boundary) continue;
    LayerTensors& kept = out.layers[i].emplace();
    kept.attn_norm = std::move(whole.attn_norm);
    kept.compressor = std::move(whole.compressor);
    IndexerTensors& indexer = kept.indexer.emplace();
    indexer.wk = std::move(whole.indexer->wk);
    indexer.k_norm = std::move(whole.indexer->k_norm);
  }
}

}  // namespace

std::string_view to_string(Role role) {
  switch (role) {
    case Role::all: return "all";
    case Role::encoder: return "encoder";
    case Role::decoder: return "decoder";
  }
  return "?";
}

LayerRange layers_of(Role role, const ModelPlan& plan) {
  return {0, role == Role::encoder ? plan.boundary : static_cast<LayerId>(plan.layers.size())};
}

Status check_part(LayerRange part, Role role, const ModelPlan& plan) {
  const LayerRange whole = layers_of(role, plan);
  if (part.first >= 0 && part.first < part.last && part.last <= whole.last) return {};
  return make_error(Errc::invalid_argument, "layers " + std::to_string(part.first) + "-" +
                                                std::to_string(part.last - 1) + ": role " +
                                                std::string(to_string(role)) + " has layers 0-" +
                                                std::to_string(whole.last - 1));
}

Result<Checkpoint> load_checkpoint(const std::string& directory, Role role,
                                   std::optional<LayerRange> part) {
  Checkpoint out;
  CEDAR_TRY(out.config, load_model_config(directory));
  CEDAR_TRY(out.plan, make_layer_plan(out.config));
  out.role = role;
  out.range = part.value_or(layers_of(role, out.plan));
  CEDAR_CHECK_OK(check_part(out.range, role, out.plan));
  std::vector<CheckpointSlot> slots = checkpoint_slots(out.config, out.plan, out);
  SlotMap slot_of;
  for (CheckpointSlot& slot : slots) slot_of.emplace(slot.expected.name, &slot);

  const auto wanted = [&](const std::string& name) {
    const auto slot = slot_of.find(name);
    return slot != slot_of.end() && needed_by(slot->second->expected, role);
  };
  CEDAR_TRY(CheckpointFiles files, open_checkpoint_files(directory, wanted));
  CEDAR_CHECK_OK(check_names(directory, slots, slot_of, files, role));
  for (const auto& [name, tensor] : files.tensors) {
    CheckpointSlot& slot = *slot_of.at(name);
    CEDAR_CHECK_OK(bind(tensor, slot));
    if (needed_by(slot.expected, role) && in_part(slot.expected, out)) count(slot.expected, out);
  }
  keep_role(out);
  keep_part(out);
  out.files = std::move(files.shards);
  return out;
}

}  // namespace cedar::model
