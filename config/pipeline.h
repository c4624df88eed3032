#pragma once
// Nodes that together are one stage, each with a range of its layers.

#include <cstdint>
#include <string>
#include <vector>

#include "core/result.h"

namespace cedar::config {

struct ClusterConfig;
struct NodeSettings;

/// Layers [first, last), as NodeSettings::layers writes them: "8-13" is {8, 14}, "8" is {8, 9}.
struct LayerSpan {
  int64_t first = 0;
  int64_t last = 0;
};
/// Errors: invalid_argument saying what is wrong.
Result<LayerSpan> parse_layers(const std::string& text);

/// One node of a pipeline.
struct PipelineRank {
  const NodeSettings* node = nullptr;
  LayerSpan layers;
};
/// All nodes of a pipeline in the order of their layers. REQUIRES: layers that parse.
std::vector<PipelineRank> pipeline_ranks(const ClusterConfig& config, const std::string& pipeline);

/// What is wrong with the pipelines of a file, as far as the file alone tells: where the last layers end is for the model
/// to say. Empty: nothing. `node`: whose setting `key` it is.
struct PipelineComplaint {
  const NodeSettings* node = nullptr;
  const char* key = nullptr;
  std::string what;
};
std::vector<PipelineComplaint> check_pipelines(const ClusterConfig& config);

}  // namespace cedar::config
