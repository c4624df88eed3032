// Loops that do nothing but multiply-adds on registers, or nothing but loads. The including file defines
// kLanes and multiply_add(); it is compiled with the flags of its instruction set, so everything here has
// internal linkage.

#pragma once

#include <cstdint>

namespace cedar::bench {
namespace {

typedef float Vec __attribute__((vector_size(4 * kLanes)));

/// 12 sums cover latency 6 at two instructions a cycle and fit 16 registers.
constexpr int kSums = 12;

double f32_peak(int64_t iterations, float* sink) {
  Vec sums[kSums] = {};
  Vec a = Vec{} + 1.0f, b = Vec{} + 1e-30f;
  // Not constants to the compiler, and no two sums the same.
  asm volatile("" : "+x"(a), "+x"(b));
  for (Vec& sum : sums) asm volatile("" : "+x"(sum));
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) sums[s] = multiply_add(a, b, sums[s]);
  }
  for (int s = 1; s < kSums; ++s) sums[0] += sums[s];
  *sink = sums[0][0];
  return 2.0 * kLanes * kSums * static_cast<double>(iterations);
}

/// The sum of `bytes` (a multiple of 256) from p on.
uint32_t read_all(const char* p, int64_t bytes) {
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  constexpr int64_t kAtOnce = 256 / static_cast<int64_t>(sizeof(Words));
  Words sums[kAtOnce] = {};
  for (int64_t at = 0; at < bytes; at += 256) {
    for (int64_t i = 0; i < kAtOnce; ++i) {
      Words words;
      __builtin_memcpy(&words, p + at + i * static_cast<int64_t>(sizeof words), sizeof words);
      sums[i] += words;
    }
  }
  uint32_t total = 0;
  for (const Words& sum : sums) {
    for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  }
  return total;
}

}  // namespace
}  // namespace cedar::bench
