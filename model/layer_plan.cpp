#include "model/layer_plan.h"

#include <algorithm>
#include <string>

namespace cedar::model {
namespace {

using std::to_string;

Error refused(const std::string& key, const std::string& problem) {
  return make_error(Errc::invalid_config, "text_config." + key + ": " + problem);
}

std::string entry(const char* key, size_t i, int64_t value) {
  return std::string(key) + "[" + to_string(i) + "] = " + to_string(value);
}

bool contains(const std::vector<LayerId>& ids, LayerId id) {
  return std::binary_search(ids.begin(), ids.end(), id);
}

/// The largest id that is not above `layer`. REQUIRES: sorted ids.
std::optional<LayerId> last_up_to(const std::vector<LayerId>& ids, LayerId layer) {
  const auto above = std::upper_bound(ids.begin(), ids.end(), layer);
  if (above == ids.begin()) return std::nullopt;
  return *(above - 1);
}

Status check_ids(const char* key, const std::vector<LayerId>& ids, int64_t layers) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= layers) {
      return refused(entry(key, i, ids[i]),
                     "no such layer, num_hidden_layers is " + to_string(layers));
    }
    if (i > 0 && ids[i] <= ids[i - 1]) {
      return refused(entry(key, i, ids[i]), "expected strictly increasing layer ids");
    }
  }
  return {};
}

Status check_ratio_list(const ModelConfig& c) {
  const auto& ratios = c.compress_ratios;
  const size_t backbone = static_cast<size_t>(c.num_hidden_layers);
  const size_t all = backbone + static_cast<size_t>(c.num_nextn_predict_layers);
  if (ratios.size() != backbone && ratios.size() != all) {
    return refused("compress_ratios", "has " + to_string(ratios.size()) +
                                          " entries, expected one for each of the " +
                                          to_string(backbone) + " layers, or " + to_string(all) +
                                          " with the DSpark layers");
  }
  for (size_t i = 0; i < ratios.size(); ++i) {
    if (i >= backbone && ratios[i] != 0) {
      return refused(entry("compress_ratios", i, ratios[i]),
                     "DSpark layers have no global attention, expected 0");
    }
    if (ratios[i] > 0 && c.block_tokens() % ratios[i] != 0) {
      return refused(entry("compress_ratios", i, ratios[i]),
                     "expected a divisor of the KV block's " + to_string(c.block_tokens()) +
                         " tokens (sliding_window)");
    }
  }
  return {};
}

/// Every KV source scores its own keys, has a ratio, and only the last one has ratio 1.
Status check_sources(const ModelConfig& c) {
  const auto& sources = c.kv_source_layer_ids;
  if (sources.empty()) return refused("kv_source_layer_ids", "is empty, so no layer has global KV");
  for (size_t i = 0; i < sources.size(); ++i) {
    const std::string name = entry("kv_source_layer_ids", i, sources[i]);
    const int64_t ratio = c.compress_ratios[static_cast<size_t>(sources[i])];
    if (ratio == 0) return refused(name, "compress_ratios is 0 at this layer");
    if (!contains(c.index_source_layer_ids, sources[i])) {
      return refused(name,
                     "is not in index_source_layer_ids, and a top-k list of another source's rows "
                     "does not fit its own");
    }
    if ((ratio == 1) != (i + 1 == sources.size())) {
      return refused(name,
                     "has ratio " + to_string(ratio) +
                         ": exactly the last KV source must have ratio 1, the first decoder layer");
    }
  }
  if (sources.back() == 0) {
    return refused(entry("kv_source_layer_ids", sources.size() - 1, 0),
                   "the first decoder layer is layer 0, which leaves the encoder without layers");
  }
  return {};
}

Result<LayerPlan> plan_layer(const ModelConfig& c, LayerId id) {
  LayerPlan plan;
  plan.id = id;
  plan.half = id < c.kv_source_layer_ids.back() ? Half::encoder : Half::decoder;
  plan.ratio = c.compress_ratios[static_cast<size_t>(id)];
  plan.has_engram = contains(c.engram_layer_ids, id);
  plan.is_draft_target = contains(c.dspark_target_layer_ids, id);
  const bool is_index_source = contains(c.index_source_layer_ids, id);
  if (plan.ratio == 0) {
    if (is_index_source) {
      return refused("index_source_layer_ids",
                     "names layer " + to_string(id) + ", whose compress_ratios entry is 0");
    }
    return plan;
  }

  const std::string ratio_name = entry("compress_ratios", static_cast<size_t>(id), plan.ratio);
  plan.kv_source = last_up_to(c.kv_source_layer_ids, id);
  if (!plan.kv_source) {
    return refused(ratio_name, "no KV source at or below this layer (the first is layer " +
                                   to_string(c.kv_source_layer_ids.front()) + ")");
  }
  const int64_t source_ratio = c.compress_ratios[static_cast<size_t>(*plan.kv_source)];
  if (source_ratio != plan.ratio) {
    return refused(ratio_name, "its KV source, layer " + to_string(*plan.kv_source) +
                                   ", has ratio " + to_string(source_ratio));
  }
  // Every KV source is an index source, so this one exists and is not below kv_source.
  plan.index_source = last_up_to(c.index_source_layer_ids, id);
  if (plan.kv_source == id) {
    plan.mode = LayerMode::full;
  } else {
    plan.mode = is_index_source ? LayerMode::reindex : LayerMode::reuse;
  }
  return plan;
}

Status plan_candidates(const ModelConfig& c, std::vector<LayerPlan>& layers) {
  if (!c.candidate_source_layer_id) return {};
  const LayerId source = *c.candidate_source_layer_id;
  const std::string name = "candidate_source_layer_id = " + to_string(source);
  if (source < 0 || source >= c.num_hidden_layers) {
    return refused(name, "no such layer, num_hidden_layers is " + to_string(c.num_hidden_layers));
  }
  LayerPlan& maker = layers[static_cast<size_t>(source)];
  if (maker.mode != LayerMode::full) {
    return refused(name, "only a Full layer scores all rows, this one is " +
                             std::string(to_string(maker.mode)));
  }
  maker.makes_candidates = true;
  for (LayerPlan& layer : layers) {
    if (layer.id <= source || layer.mode != LayerMode::reindex) continue;
    if (layer.kv_source != source) {
      return refused(name, "layer " + to_string(layer.id) +
                               " above it re-indexes the rows of layer " +
                               to_string(*layer.kv_source) + ", which the pool does not hold");
    }
    layer.uses_candidates = true;
  }
  return {};
}

Status check_engram(const ModelConfig& c) {
  if (c.engram_num_embeddings.size() != c.engram_layer_ids.size()) {
    return refused("engram_num_embeddings",
                   "has " + to_string(c.engram_num_embeddings.size()) + " entries, expected " +
                       to_string(c.engram_layer_ids.size()) + " as engram_layer_ids has");
  }
  // The boundary projection takes the streams as the layer below left them; Engram would change
  // them first.
  if (contains(c.engram_layer_ids, c.kv_source_layer_ids.back())) {
    return refused("engram_layer_ids",
                   "names layer " + to_string(c.kv_source_layer_ids.back()) +
                       ", the first decoder layer, whose input the encoder projects");
  }
  return {};
}

Status check_targets(const ModelConfig& c) {
  if (c.num_nextn_predict_layers == 0) return {};
  const auto& targets = c.dspark_target_layer_ids;
  if (targets.empty())
    return refused("dspark_target_layer_ids", "is empty, so the drafter has no input");
  if (targets.front() < c.kv_source_layer_ids.back()) {
    return refused(
        entry("dspark_target_layer_ids", 0, targets.front()),
        "is an encoder layer, and the decoder's replay does not run it (first decoder layer: " +
            to_string(c.kv_source_layer_ids.back()) + ")");
  }
  return {};
}

}  // namespace

Result<ModelPlan> make_layer_plan(const ModelConfig& c) {
  CEDAR_CHECK_OK(check_ratio_list(c));
  CEDAR_CHECK_OK(check_ids("kv_source_layer_ids", c.kv_source_layer_ids, c.num_hidden_layers));
  CEDAR_CHECK_OK(
      check_ids("index_source_layer_ids", c.index_source_layer_ids, c.num_hidden_layers));
  CEDAR_CHECK_OK(check_ids("engram_layer_ids", c.engram_layer_ids, c.num_hidden_layers));
  CEDAR_CHECK_OK(
      check_ids("dspark_target_layer_ids", c.dspark_target_layer_ids, c.num_hidden_layers));
  CEDAR_CHECK_OK(check_sources(c));
  CEDAR_CHECK_OK(check_engram(c));
  CEDAR_CHECK_OK(check_targets(c));

  ModelPlan plan;
  plan.boundary = c.kv_source_layer_ids.back();
  for (LayerId id = 0; id < c.num_hidden_layers; ++id) {
    CEDAR_TRY(plan.layers.emplace_back(), plan_layer(c, id));
  }
  for (LayerId id : c.kv_source_layer_ids) {
    plan.kv_sources.push_back({id, c.compress_ratios[static_cast<size_t>(id)]});
  }
  CEDAR_CHECK_OK(plan_candidates(c, plan.layers));
  return plan;
}

int64_t ModelPlan::source_index(LayerId layer) const {
  const auto found =
      std::find_if(kv_sources.begin(), kv_sources.end(),
                   [layer](const KvSource& source) { return source.layer == layer; });
  CEDAR_ASSERT(found != kv_sources.end(), "layer " + to_string(layer) + " is no KV source");
  return found - kv_sources.begin();
}

std::string_view to_string(LayerMode mode) {
  switch (mode) {
    case LayerMode::window_only: return "window";
    case LayerMode::full: return "full";
    case LayerMode::reindex: return "reindex";
    case LayerMode::reuse: return "reuse";
  }
  return "?";
}

std::string_view to_string(Half half) {
  switch (half) {
    case Half::encoder: return "encoder";
    case Half::decoder: return "decoder";
  }
  return "?";
}

}  // namespace cedar::model
