#pragma once
// The figures of synthetic runs, for people and for files.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/serve/synthetic_run.h"

namespace cedar::bench {

/// Bytes of the server per open connection: the slope of a line through the points, by least squares.
double bytes_per_connection(const std::vector<MemoryPoint>& points);

/// Nothing was lost, repeated or out of order, and every answer that somebody read ended as it should.
bool all_received(const SyntheticResult& result);

nlohmann::ordered_json to_json(const SyntheticOptions& options, const SyntheticResult& result);
void print(const std::string& title, const SyntheticResult& result);

}  // namespace cedar::bench
