#pragma once
// ucx_perftest as the yardstick: what UCX itself reaches on this machine, in the same run.

#include <optional>

#include "bench/transport/producer.h"

namespace cedar::bench {

struct PerftestResult {
  double bytes_per_s = 0;
  double latency_us = 0;  // mean time of one operation while they are pipelined
};

/// `test` as ucx_perftest calls it ("ucp_am_bw", "ucp_get"). Nothing where the program is missing or fails.
std::optional<PerftestResult> run_perftest(const LinkKind& kind, const std::string& test,
                                           uint64_t bytes, uint64_t iterations);

}  // namespace cedar::bench
