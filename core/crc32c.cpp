// The instruction has a latency of three cycles and a throughput of one: three chains run side by side over
// neighbouring stripes, and the first two results are moved forward over what follows them by a table.

#include "core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#endif

namespace cedar {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr uint32_t step_byte(uint32_t crc) {
  for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
  return crc;
}

#if defined(__SSE4_2__)

constexpr size_t kStripeBytes = 2048;

/// Appending zero bytes is linear over GF(2), so it splits into one look-up per byte of the state.
struct StripeShift {
  std::array<std::array<uint32_t, 256>, 4> table{};

  StripeShift() {
    std::array<uint32_t, 32> image{};
    for (size_t bit = 0; bit < 32; ++bit) {
      uint32_t crc = uint32_t{1} << bit;
      for (size_t i = 0; i < kStripeBytes; ++i) crc = step_byte(crc);
      image[bit] = crc;
    }
    for (size_t byte = 0; byte < 4; ++byte) {
      for (size_t value = 0; value < 256; ++value) {
        for (size_t bit = 0; bit < 8; ++bit) {
          if ((value >> bit & 1) != 0) table[byte][value] ^= image[8 * byte + bit];
        }
      }
    }
  }
  uint32_t operator()(uint32_t crc) const {
    return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255] ^
           table[3][crc >> 24];
  }
};

uint64_t load64(const std::byte* p) {
  uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

uint32_t update(uint32_t crc, const std::byte* p, size_t bytes) {
  static const StripeShift shift;
  while (bytes >= 3 * kStripeBytes) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kStripeBytes; i += 8) {
      a = _mm_crc32_u64(a, load64(p + i));
      b = _mm_crc32_u64(b, load64(p + kStripeBytes + i));
      c = _mm_crc32_u64(c, load64(p + 2 * kStripeBytes + i));
    }
    crc = shift(shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b)) ^
          static_cast<uint32_t>(c);
    p += 3 * kStripeBytes;
    bytes -= 3 * kStripeBytes;
  }
  for (; bytes >= 8; p += 8, bytes -= 8) crc = static_cast<uint32_t>(_mm_crc32_u64(crc, load64(p)));
  for (; bytes > 0; ++p, --bytes) crc = _mm_crc32_u8(crc, std::to_integer<uint8_t>(*p));
  return crc;
}

#else

uint32_t update(uint32_t crc, const std::byte* p, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) crc = step_byte(crc ^ std::to_integer<uint8_t>(p[i]));
  return crc;
}

#endif

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t seed) {
  return ~update(~seed, bytes.data(), bytes.size());
}

}  // namespace cedar
