#pragma once
// What `cedar bench kernels` measures. An operation joins by adding entries to a table: see cases.h.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/result.h"
#include "kernels/kernel_context.h"

namespace cedar::bench {

/// A ceiling of the machine.
enum class Bound : uint8_t { memory, bf16, f32 };

/// One case with its data, ready to run.
struct Prepared {
  /// One call of the operation. Called many times; may rotate through copies of its data so that a case whose
  /// weights would stay in the cache reads memory.
  std::function<Status()> run;
  /// After one run(): empty, or what is wrong. Compares with a reference that shares no code with kernels/.
  std::function<std::string()> verify;
  /// Per call: what has to be read and written at least, and the arithmetic (a multiply-add is 2). The report
  /// compares with whichever takes longer at its ceiling, the bytes or the arithmetic.
  double bytes = 0;
  double flops = 0;
  /// The ceiling of `flops`; memory: the arithmetic is no limit.
  Bound bound = Bound::memory;
};

struct Case {
  std::string op;     // "linear"
  std::string shape;  // "fp8 [5120, 2304] rows 1, from memory"
  /// Allocates and fills. Data lives as long as the returned object; one case is alive at a time.
  std::function<Result<Prepared>(kernels::KernelContext&)> prepare;
};

}  // namespace cedar::bench
