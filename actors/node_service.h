#pragma once
// A role of a node that answers calls of the data plane. No CAF type appears here.

#include <functional>
#include <memory>

#include "actors/services.h"
#include "core/result.h"
#include "monitoring/metrics.h"

namespace cedar::actors {

/// Serves from its construction on, and has to go on until its destruction: who uses it learns a moment later that it
/// drains. When it is destroyed no call comes any more.
class NodeService {
 public:
  virtual ~NodeService() = default;
  /// What the cluster is told of it.
  virtual Service description() const = 0;
  /// Whether work that takes several calls is under way: a node that drains waits for its end.
  virtual bool busy() const { return false; }
  /// What it has counted, at every scrape; on any thread.
  virtual void report(monitoring::Metrics& /*metrics*/) const {}
};

/// Makes a service at the start of its node; `plane` has everything and outlives the service.
using NodeServiceFactory =
    std::function<Result<std::unique_ptr<NodeService>>(const DataPlane& plane)>;

}  // namespace cedar::actors
