#include <cstdint>

namespace cedar::bench {
namespace {
constexpr int kLanes = 4;
typedef float Lanes __attribute__((vector_size(4 * kLanes)));
[[gnu::always_inline]] inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) { return a * b + c; }
}  // namespace
}  // namespace cedar::bench

#include "bench/kernels/peak_body.h"

namespace cedar::bench {

double f32_peak_portable(int64_t iterations, float* sink) { return f32_peak(iterations, sink); }

uint32_t read_all_portable(const char* p, int64_t bytes) { return read_all(p, bytes); }

}  // namespace cedar::bench
