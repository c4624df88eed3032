#pragma once
// How PackedWeight::codes and ::scales are laid out for the CPU.
//
// A weight [out, in] is cut into tiles of 32 outputs, a tile into groups of 32 inputs. One (tile, group) is a
// block of 1024 elements, contiguous; blocks are ordered [tile][group], so one pass over a tile reads memory
// once, front to back. Missing outputs and inputs are zero codes.
//
// Element order of a block, the order a multiply reads decoded elements in ("panel order"):
//   [quad 8][half 2][pair 2][column 16][parity 2]     k = quad*4 + pair*2 + parity, n = half*16 + column
// so 32 consecutive bf16 are what one vdpbf16ps takes: 16 outputs, two neighbouring inputs each.
//   bf16, f32: panel order.
//   fp8: 1 byte an element, [quad][half][lane 4][pair 2][column 4][parity 2] (column = lane*4 + ...): byte
//        unpacking inside 128-bit lanes turns 64 codes into two vectors of panel order.
//   fp4: half a byte an element, [quad][column 16][parity 2][half 2][pair 2]: the four nibbles of a 16-bit word
//        belong to four vectors of panel order, so that one word lookup per vector decodes them.
// Scales: fp8 one byte per block, [tile][group]; fp4 32 bytes per block, [tile][group][output].

#include <cstdint>

namespace cedar::kernels::cpu {

constexpr int64_t kTileOut = 32;
constexpr int64_t kGroupIn = 32;
constexpr int64_t kBlockElements = kTileOut * kGroupIn;

constexpr int64_t panel_position(int64_t k, int64_t n) {
  const int64_t quad = k / 4, pair = (k / 2) % 2, parity = k % 2;
  const int64_t half = n / 16, column = n % 16;
  return ((quad * 2 + half) * 2 + pair) * 32 + column * 2 + parity;
}

constexpr int64_t fp8_position(int64_t k, int64_t n) {
  const int64_t quad = k / 4, pair = (k / 2) % 2, parity = k % 2;
  const int64_t half = n / 16, lane = (n % 16) / 4, column = n % 4;
  return (quad * 2 + half) * 64 + lane * 16 + pair * 8 + column * 2 + parity;
}

/// In nibbles, low one first.
constexpr int64_t fp4_position(int64_t k, int64_t n) {
  const int64_t quad = k / 4, pair = (k / 2) % 2, parity = k % 2;
  const int64_t half = n / 16, column = n % 16;
  return quad * 128 + ((column * 2 + parity) * 2 + half) * 2 + pair;
}

}  // namespace cedar::kernels::cpu
