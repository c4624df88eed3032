#pragma once

#include <cstdint>
#include <vector>

namespace cedar::model {

/// 8-bit RGB pixels, rows from top to bottom, no padding between them.
struct RgbImage {
  int64_t width = 0;
  int64_t height = 0;
  std::vector<uint8_t> pixels;  // [height, width, 3]

  const uint8_t* row(int64_t y) const { return pixels.data() + y * width * 3; }
  uint8_t* row(int64_t y) { return pixels.data() + y * width * 3; }
};

}  // namespace cedar::model
