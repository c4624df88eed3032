#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/rgb_image.h"

namespace cedar::test {

/// The formula of tests/golden/images/make_images.py: squares of noise and of ramps.
inline model::RgbImage synthetic_image(int64_t width, int64_t height, uint32_t seed) {
  model::RgbImage image{width, height, {}};
  image.pixels.reserve(static_cast<size_t>(width * height * 3));
  for (uint32_t y = 0; y < static_cast<uint32_t>(height); ++y) {
    for (uint32_t x = 0; x < static_cast<uint32_t>(width); ++x) {
      for (uint32_t c = 0; c < 3; ++c) {
        uint32_t h = (x * 73856093u) ^ (y * 19349663u) ^ (c * 83492791u) ^ seed;
        h ^= h >> 13;
        h *= 0x5bd1e995u;
        h ^= h >> 15;
        const uint32_t ramp = x * 3 + y * 5 + c * 40;
        const bool noise = (((x >> 3) + (y >> 3)) & 1u) != 0;
        image.pixels.push_back(static_cast<uint8_t>(noise ? h : ramp));
      }
    }
  }
  return image;
}

inline std::string fnv1a(std::span<const uint8_t> data) {
  uint64_t digest = 0xcbf29ce484222325u;
  for (const uint8_t byte : data) digest = (digest ^ byte) * 0x100000001b3u;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (int i = 15; i >= 0; --i, digest >>= 4) text[static_cast<size_t>(i)] = kDigits[digest & 15];
  return text;
}

}  // namespace cedar::test
