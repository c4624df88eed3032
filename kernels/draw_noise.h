#pragma once
// The noise of sampling: a pure function of (seed, choice, position, token), so that a token depends on nothing
// but its request. Host and device code.

#include <cstdint>

#if defined(__CUDACC__)
#define CEDAR_HOST_DEVICE __host__ __device__
#else
#define CEDAR_HOST_DEVICE
#endif

namespace cedar::kernels {

/// SplitMix64's finaliser: a bijection of 64 bits whose output bits all depend on all input bits.
CEDAR_HOST_DEVICE inline uint64_t mix_bits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// In (0, 1), of token `token` at output position `position`; -log(-log(it)) is its Gumbel noise.
CEDAR_HOST_DEVICE inline double draw_uniform(uint64_t key, uint64_t position, uint64_t token) {
  const uint64_t bits = mix_bits(mix_bits(key ^ mix_bits(position)) ^ token);
  return (static_cast<double>(bits >> 40) + 0.5) * 0x1p-24;
}

}  // namespace cedar::kernels

#undef CEDAR_HOST_DEVICE
