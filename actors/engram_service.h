#pragma once
// The role `engram`: answers questions for rows of one shard of the tables. No CAF type appears here.

#include <memory>

#include "actors/node_service.h"
#include "engine/engram_tables.h"
#include "monitoring/metrics.h"

namespace cedar::actors {

struct EngramServiceOptions {
  int32_t threads = 2;  // that read rows; one that waits for the disk does not hold up the others
  std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics();
};

/// Rows of a mapped file may have to come from the disk, so threads of the service read them; the data plane's thread
/// only queues. What nobody waits for any more is not read.
NodeServiceFactory engram_service(std::shared_ptr<const engine::EngramTables> tables,
                                  const EngramServiceOptions& options = {});

}  // namespace cedar::actors
