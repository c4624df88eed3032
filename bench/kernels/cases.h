#pragma once
// The tables of cases, one function per group of operations. Sizes depend on the device: what is
// memory-bound, and what fits a benchmark's patience. Operations whose data lies in host memory have no cases
// for a CUDA device here (bench/cuda measures those).

#include <vector>

#include "bench/kernels/bench_case.h"

namespace cedar::bench {

std::vector<Case> linear_cases(Device device);
std::vector<Case> quantize_cases(Device device);
std::vector<Case> moe_cases(Device device);
std::vector<Case> attention_cases();
std::vector<Case> selection_cases();
std::vector<Case> row_cases();

/// All of the above, in the order of a report.
std::vector<Case> all_cases(Device device = {});

}  // namespace cedar::bench
