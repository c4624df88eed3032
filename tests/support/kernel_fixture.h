#pragma once
// What tests of kernels share: a context per instruction set, random bf16 data, error measures.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/arena.h"
#include "core/float_formats.h"
#include "core/thread_pool.h"
#include "kernels/kernel_context.h"

namespace cedar::test {

/// Owns what a CPU KernelContext points to.
class CpuContext {
 public:
  explicit CpuContext(kernels::CpuIsa isa = kernels::best_cpu_isa(), int threads = 2)
      : pool_(threads), arena_(Device{}) {
    ctx_.pool = &pool_;
    ctx_.arena = &arena_;
    ctx_.isa = isa;
  }
  kernels::KernelContext& operator*() { return ctx_; }
  Arena& arena() { return arena_; }

 private:
  ThreadPool pool_;
  Arena arena_;
  kernels::KernelContext ctx_;
};

/// Base of suites that run once per instruction set; levels that the processor lacks show as skipped.
class EachIsa : public ::testing::TestWithParam<kernels::CpuIsa> {
 protected:
  void SetUp() override {
    if (!kernels::cpu_supports(GetParam()))
      GTEST_SKIP() << "processor lacks " << to_string(GetParam());
  }
};
inline auto all_isas() {
  return ::testing::Values(kernels::CpuIsa::portable, kernels::CpuIsa::avx2,
                           kernels::CpuIsa::avx512_bf16);
}
inline std::string isa_name(const ::testing::TestParamInfo<kernels::CpuIsa>& info) {
  return std::string(to_string(info.param));
}

/// Normal distribution of the given deviation.
inline std::vector<Bf16> random_bf16(int64_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<Bf16> values(static_cast<size_t>(count));
  for (Bf16& value : values) value = Bf16(normal(engine));
  return values;
}

inline std::vector<uint8_t> random_bytes(int64_t count, uint32_t seed, int lowest = 0,
                                         int highest = 255) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> uniform(lowest, highest);
  std::vector<uint8_t> values(static_cast<size_t>(count));
  for (uint8_t& value : values) value = static_cast<uint8_t>(uniform(engine));
  return values;
}

inline double as_double(Bf16 x) { return static_cast<double>(static_cast<float>(x)); }
inline double as_double(float x) { return static_cast<double>(x); }
inline double as_double(double x) { return x; }

/// |got - want| / |want| in the Euclidean norm. Both all zero: 0.
template <class A, class B>
double relative_l2(std::span<const A> got, std::span<const B> want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double d = as_double(got[i]) - as_double(want[i]);
    difference += d * d;
    norm += as_double(want[i]) * as_double(want[i]);
  }
  if (difference == 0) return 0;
  return std::sqrt(difference / norm);
}

/// Distance of two bf16 numbers in steps of the format; -0 and 0 are the same.
inline int64_t bf16_steps(Bf16 a, Bf16 b) {
  const auto ordered = [](Bf16 x) -> int64_t {
    const int64_t magnitude = x.bits & 0x7fff;
    return (x.bits & 0x8000) != 0 ? -magnitude : magnitude;
  };
  return std::abs(ordered(a) - ordered(b));
}
inline int64_t most_bf16_steps(std::span<const Bf16> got, std::span<const Bf16> want) {
  EXPECT_EQ(got.size(), want.size());
  int64_t most = 0;
  for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    most = std::max(most, bf16_steps(got[i], want[i]));
  }
  return most;
}

}  // namespace cedar::test
