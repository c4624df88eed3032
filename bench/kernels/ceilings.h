#pragma once
// What this machine can do at best, measured in the same run as the operations.

#include "bench/kernels/timing.h"
#include "core/thread_pool.h"
#include "kernels/kernel_context.h"

namespace cedar::bench {

struct Ceilings {
  double read_bytes_per_s = 0;  // sum over a buffer that no cache holds
  double copy_bytes_per_s = 0;  // memcpy of such buffers, bytes read plus bytes written
  double bf16_flop_per_s =
      0;  // multiply-adds on registers only; on an instruction set without bf16: fp32
  double f32_flop_per_s = 0;
};

/// All threads of `pool` at once.
Ceilings measure_ceilings(ThreadPool& pool, kernels::CpuIsa isa, Clock clock);

/// Register-only loops. Run `iterations` steps and return the number of floating-point operations done; the
/// sum of the accumulators goes to `sink` so that the loop has a use.
using PeakLoop = double (*)(int64_t iterations, float* sink);
PeakLoop f32_peak_loop(kernels::CpuIsa isa);
PeakLoop bf16_peak_loop(kernels::CpuIsa isa);

double f32_peak_portable(int64_t iterations, float* sink);
double f32_peak_avx2(int64_t iterations, float* sink);
double f32_peak_avx512(int64_t iterations, float* sink);
double bf16_peak_avx512(int64_t iterations, float* sink);

/// Reads `bytes` (a multiple of 256) and returns their sum.
using ReadLoop = uint32_t (*)(const char* p, int64_t bytes);
ReadLoop read_loop(kernels::CpuIsa isa);

uint32_t read_all_portable(const char* p, int64_t bytes);
uint32_t read_all_avx2(const char* p, int64_t bytes);
uint32_t read_all_avx512(const char* p, int64_t bytes);

}  // namespace cedar::bench
