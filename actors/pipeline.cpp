#include "actors/pipeline.h"

#include <algorithm>

#include "actors/service_directory.h"

namespace cedar::actors {

Service part_of(const PipelinePlace& place, ServiceRole role, size_t rank) {
  const model::LayerRange& layers = place.ranks.at(rank);
  // With the layers, so that nodes whose files differ do not find each other.
  return {role, static_cast<int32_t>(rank), static_cast<int32_t>(place.ranks.size()),
          place.name + ' ' + std::to_string(layers.first) + '-' + std::to_string(layers.last - 1)};
}

Result<std::vector<DataEndpoint>> find_route(const ServiceDirectory& directory,
                                             const PipelinePlace& place, ServiceRole role) {
  const auto providers = directory.services(role);
  std::vector<DataEndpoint> route;
  for (size_t rank = 1; rank < place.ranks.size(); ++rank) {
    const Service wanted = part_of(place, role, rank);
    const auto found = std::find_if(providers.begin(), providers.end(), [&](const auto& provider) {
      return provider.service == wanted;
    });
    if (found == providers.end()) {
      return make_error(Errc::unavailable, "pipeline " + place.name + ": nobody has rank " +
                                               std::to_string(rank) + ", \"" + wanted.detail + '"');
    }
    route.push_back(found->endpoint);
  }
  return route;
}

}  // namespace cedar::actors
