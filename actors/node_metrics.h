#pragma once
// What a node's data plane and its services count, as metrics. No CAF type appears here.

#include "actors/index_spread.h"
#include "actors/remote_engram.h"
#include "monitoring/metrics.h"
#include "transport/calls.h"
#include "transport/stats.h"

namespace cedar::actors {

void report(const transport::TransportStats& stats, monitoring::Metrics& metrics);
void report(const transport::CallStats& stats, monitoring::Metrics& metrics);
void report(const RemoteEngramStats& stats, monitoring::Metrics& metrics);
void report(const IndexSpreadStats& stats, monitoring::Metrics& metrics);

}  // namespace cedar::actors
