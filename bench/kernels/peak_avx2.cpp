#include <immintrin.h>

#include <cstdint>

namespace cedar::bench {
namespace {
constexpr int kLanes = 8;
[[gnu::always_inline]] inline __m256 multiply_add(__m256 a, __m256 b, __m256 c) {
  return _mm256_fmadd_ps(a, b, c);
}
}  // namespace
}  // namespace cedar::bench

#include "bench/kernels/peak_body.h"

namespace cedar::bench {

double f32_peak_avx2(int64_t iterations, float* sink) { return f32_peak(iterations, sink); }

uint32_t read_all_avx2(const char* p, int64_t bytes) { return read_all(p, bytes); }

}  // namespace cedar::bench
