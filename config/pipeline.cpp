#include "config/pipeline.h"

#include <algorithm>
#include <set>

#include "config/cluster_config.h"
#include "config/settings_io.h"

namespace cedar::config {
namespace {

std::string shown(const LayerSpan& layers) {
  return std::to_string(layers.first) + '-' + std::to_string(layers.last - 1);
}

/// Of one node, without the others.
PipelineComplaint check_member(const NodeSettings& node) {
  if (node.pipeline.empty()) {
    return {&node, "layers", "needs a pipeline that these layers belong to, got pipeline = \"\""};
  }
  if (node.layers.empty()) {
    return {&node, "layers",
            "must be the node's layers of pipeline " + toml_string(node.pipeline) + ", got \"\""};
  }
  if (node.has("encoder") == node.has("decoder")) {
    return {&node, "pipeline",
            "needs one of the roles encoder and decoder, whose layers it spreads, got " +
                toml_string(node.pipeline)};
  }
  if (node.name.back() == '*') {
    return {&node, "pipeline",
            "needs a node for each part of its layers, not a pattern, got " +
                toml_string(node.pipeline)};
  }
  if (const auto layers = parse_layers(node.layers); !layers) {
    return {&node, "layers", layers.error().context};
  }
  return {};
}

/// What all ranks of a pipeline must agree on: where a prompt fits, and how large a chunk is.
PipelineComplaint check_equal(const NodeSettings& face, const NodeSettings& node) {
  const auto differ = [&](const char* key, int64_t first, int64_t own) -> PipelineComplaint {
    return {&node, key,
            "must be that of all nodes of pipeline " + toml_string(node.pipeline) + ", " +
                std::to_string(first) + " at " + face.name + ", got " + std::to_string(own)};
  };
  if (node.max_sequences != face.max_sequences) {
    return differ("max_sequences", face.max_sequences, node.max_sequences);
  }
  if (node.kv_pool_blocks != face.kv_pool_blocks) {
    return differ("kv_pool_blocks", face.kv_pool_blocks, node.kv_pool_blocks);
  }
  if (node.prefill_chunk_tokens != face.prefill_chunk_tokens) {
    return differ("prefill_chunk_tokens", face.prefill_chunk_tokens, node.prefill_chunk_tokens);
  }
  return {};
}

PipelineComplaint check_ranks(const std::vector<PipelineRank>& ranks) {
  const std::string& name = ranks.front().node->pipeline;
  int64_t expected = 0;
  for (const PipelineRank& rank : ranks) {
    const std::string pipeline = "pipeline " + toml_string(name) + ": ";
    if (rank.layers.first > expected) {
      return {rank.node, "layers",
              pipeline + "nobody has layers " + shown({expected, rank.layers.first}) + ", got " +
                  toml_string(rank.node->layers)};
    }
    if (rank.layers.first < expected) {
      return {rank.node, "layers",
              pipeline + "layer " + std::to_string(rank.layers.first) +
                  " belongs to another node already, got " + toml_string(rank.node->layers)};
    }
    expected = rank.layers.last;
    if (rank.node->has("decoder") != ranks.front().node->has("decoder")) {
      return {rank.node, "pipeline",
              "has nodes of the roles encoder and decoder, got " + toml_string(name)};
    }
    PipelineComplaint complaint = check_equal(*ranks.front().node, *rank.node);
    if (complaint.node != nullptr) return complaint;
  }
  if (ranks.size() == 1) {
    return {ranks.front().node, "pipeline",
            "must have at least two nodes, got " + toml_string(name) + " alone"};
  }
  return {};
}

}  // namespace

Result<LayerSpan> parse_layers(const std::string& text) {
  const auto number = [](const std::string& digits) -> int64_t {
    const bool good = !digits.empty() && digits.size() <= 6 &&
                      digits.find_first_not_of("0123456789") == std::string::npos;
    return good ? std::stoll(digits) : -1;
  };
  const size_t dash = text.find('-');
  const int64_t first = number(text.substr(0, dash));
  const int64_t last = dash == std::string::npos ? first : number(text.substr(dash + 1));
  if (first < 0 || last < first) {
    return make_error(Errc::invalid_argument,
                      "must be like \"8-13\", first and last layer, got " + toml_string(text));
  }
  return LayerSpan{first, last + 1};
}

std::vector<PipelineRank> pipeline_ranks(const ClusterConfig& config, const std::string& pipeline) {
  std::vector<PipelineRank> ranks;
  for (const NodeSettings& node : config.nodes) {
    if (node.pipeline != pipeline) continue;
    if (const auto layers = parse_layers(node.layers)) ranks.push_back({&node, *layers});
  }
  std::stable_sort(ranks.begin(), ranks.end(), [](const PipelineRank& a, const PipelineRank& b) {
    return a.layers.first < b.layers.first;
  });
  return ranks;
}

std::vector<PipelineComplaint> check_pipelines(const ClusterConfig& config) {
  std::vector<PipelineComplaint> complaints;
  std::set<std::string> pipelines, broken;
  for (const NodeSettings& node : config.nodes) {
    if (node.pipeline.empty() && node.layers.empty()) continue;
    PipelineComplaint complaint = check_member(node);
    if (complaint.node != nullptr) {
      complaints.push_back(std::move(complaint));
      broken.insert(node.pipeline);
    }
    pipelines.insert(node.pipeline);
  }
  for (const std::string& pipeline : pipelines) {
    if (broken.contains(pipeline)) continue;
    PipelineComplaint complaint = check_ranks(pipeline_ranks(config, pipeline));
    if (complaint.node != nullptr) complaints.push_back(std::move(complaint));
  }
  return complaints;
}

}  // namespace cedar::config
