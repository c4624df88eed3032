#include <immintrin.h>

#include <cstdint>

namespace cedar::bench {
namespace {
constexpr int kLanes = 16;
[[gnu::always_inline]] inline __m512 multiply_add(__m512 a, __m512 b, __m512 c) {
  return _mm512_fmadd_ps(a, b, c);
}
}  // namespace
}  // namespace cedar::bench

#include "bench/kernels/peak_body.h"

namespace cedar::bench {

double f32_peak_avx512(int64_t iterations, float* sink) { return f32_peak(iterations, sink); }

double bf16_peak_avx512(int64_t iterations, float* sink) {
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512i a = _mm512_set1_epi16(0x3f80), b = _mm512_set1_epi16(0x0100);
  asm volatile("" : "+v"(a), "+v"(b));
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int s = 0; s < kSums; ++s) {
      sums[s] =
          _mm512_dpbf16_ps(sums[s], reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
  }
  for (int s = 1; s < kSums; ++s) sums[0] = _mm512_add_ps(sums[0], sums[s]);
  *sink = _mm512_cvtss_f32(sums[0]);
  return 2.0 * 32 * kSums * static_cast<double>(iterations);
}

uint32_t read_all_avx512(const char* p, int64_t bytes) { return read_all(p, bytes); }

}  // namespace cedar::bench
