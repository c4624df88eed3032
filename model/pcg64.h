#pragma once
// The random stream that the release draws its Engram multipliers from: PCG XSL-RR 128/64 (O'Neill,
// 2014), seeded as NumPy's SeedSequence does and bounded by Lemire's multiplication (2019).
// Bit-equal to numpy.random.default_rng(seed).integers(0, bound, dtype=int64); only what that
// needs.

#include <cstdint>

namespace cedar::model {

class Pcg64 {
 public:
  explicit Pcg64(uint32_t seed);

  uint64_t next();
  /// Uniform in [0, bound). REQUIRES: bound > 2^32, below which NumPy draws 32-bit halves.
  uint64_t below(uint64_t bound);

 private:
  __extension__ using Wide = unsigned __int128;
  void step();

  Wide state_ = 0;
  Wide increment_ = 0;
};

}  // namespace cedar::model
