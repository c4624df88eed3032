#pragma once
// Random data of the right distribution, fast enough for hundreds of megabytes.

#include <cstdint>
#include <vector>

#include "core/float_formats.h"
#include "kernels/weights.h"

namespace cedar::bench {

/// xorshift64*: deterministic, 8 bytes a step.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545f4914f6cdd1du;
  }
  /// About normal with deviation 1: the sum of four uniform numbers.
  float normal() {
    const uint64_t bits = next();
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xffff);
    return (sum / 65536.0f - 2.0f) * 1.7320508f;
  }
  int64_t below(int64_t limit) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(limit));
  }

 private:
  uint64_t state_;
};

std::vector<Bf16> random_bf16(int64_t count, uint64_t seed);

/// A weight in checkpoint layout, with values of deviation about 1/16.
struct CheckpointWeight {
  std::vector<uint8_t> codes, scales;
  kernels::WeightView view;  // points into the two
};
CheckpointWeight random_weight(kernels::WeightFormat format, int64_t out, int64_t in,
                               uint64_t seed);

/// "fp8 [5120, 2304]"
std::string describe(kernels::WeightFormat format, int64_t out, int64_t in);

/// How many copies of `bytes` of data no cache can hold together.
int64_t copies_beyond_cache(int64_t bytes);

}  // namespace cedar::bench
