#pragma once
// Writers of image files for the decoder's tests. Failures inside the libraries end the process.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cedar::test {

struct PngSpec {
  uint32_t width = 0;
  uint32_t height = 0;
  int bit_depth = 8;
  int colour_type = 2;  // PNG's numbers: 0 grey, 2 RGB, 3 palette, 4 grey + alpha, 6 RGBA
  bool interlaced = false;
  std::vector<uint8_t> palette;  // RGB triples
  std::vector<uint8_t> palette_alpha;
  std::vector<uint8_t> rows;  // packed as PNG stores them
};
std::vector<std::byte> encode_png(const PngSpec& spec);

struct JpegSpec {
  uint32_t width = 0;
  uint32_t height = 0;
  int components = 3;  // 1 grey, 3 RGB, 4 CMYK as stored
  int quality = 90;
  bool progressive = false;
  std::vector<uint8_t> pixels;
};
std::vector<std::byte> encode_jpeg(const JpegSpec& spec);

}  // namespace cedar::test
