#pragma once
// The tables of cases, one function per group of operations.

#include <vector>

#include "bench/kernels/bench_case.h"

namespace cedar::bench {

std::vector<Case> linear_cases();
std::vector<Case> quantize_cases();
std::vector<Case> moe_cases();
std::vector<Case> attention_cases();
std::vector<Case> selection_cases();
std::vector<Case> row_cases();

/// All of the above, in the order of a report.
std::vector<Case> all_cases();

}  // namespace cedar::bench
