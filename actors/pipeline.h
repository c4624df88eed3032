#pragma once
// A stage whose layers are spread over several nodes, its ranks. The first rank is the face: it registers as the stage, cuts
// prompts into chunks and reads their first layers. The others are services of the data plane. The last has whole blocks and
// offers them. No CAF type appears here.

#include <cstdint>
#include <string>
#include <vector>

#include "actors/data_plane.h"
#include "actors/services.h"
#include "core/result.h"
#include "model/layer_plan.h"
#include "transport/calls.h"

namespace cedar::actors {

/// Of one node in one pipeline.
struct PipelinePlace {
  std::string name;
  std::vector<model::LayerRange> ranks;  // in order, without gaps
  size_t rank = 0;                       // this node's
  size_t depth = 2;                      // chunks between the face and the last answer

  bool is_face() const { return rank == 0; }
};

/// What a rank behind the face is called in the directory.
Service part_of(const PipelinePlace& place, ServiceRole role, size_t rank);

/// Whom to call there.
inline transport::CallTarget call_target(const DataEndpoint& endpoint) {
  return {endpoint.host, endpoint.port, identity_of(endpoint)};
}

/// Where the ranks behind the face are. Errors: unavailable naming the first that is missing.
Result<std::vector<DataEndpoint>> find_route(const ServiceDirectory& directory,
                                             const PipelinePlace& place, ServiceRole role);

}  // namespace cedar::actors
