#include "tests/model/image_files.h"

#include <png.h>

#include <cstdio>
#include <cstdlib>

// jpeglib.h needs size_t and FILE to be declared before it.
#include <jpeglib.h>

namespace cedar::test {

std::vector<std::byte> encode_png(const PngSpec& spec) {
  std::vector<std::byte> file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp p, png_bytep data, png_size_t count) {
        auto* out = static_cast<std::vector<std::byte>*>(png_get_io_ptr(p));
        const auto* bytes = reinterpret_cast<const std::byte*>(data);
        out->insert(out->end(), bytes, bytes + count);
      },
      [](png_structp) {});
  png_set_IHDR(png, info, spec.width, spec.height, spec.bit_depth, spec.colour_type,
               spec.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> palette;
  for (size_t i = 0; i + 2 < spec.palette.size(); i += 3) {
    palette.push_back({spec.palette[i], spec.palette[i + 1], spec.palette[i + 2]});
  }
  if (!palette.empty()) png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  if (!spec.palette_alpha.empty()) {
    png_set_tRNS(png, info, spec.palette_alpha.data(), static_cast<int>(spec.palette_alpha.size()),
                 nullptr);
  }
  png_write_info(png, info);
  const size_t row_bytes = png_get_rowbytes(png, info);
  if (row_bytes * spec.height != spec.rows.size()) std::abort();
  std::vector<uint8_t> rows = spec.rows;
  std::vector<png_bytep> pointers;
  for (uint32_t y = 0; y < spec.height; ++y) pointers.push_back(rows.data() + y * row_bytes);
  png_write_image(png, pointers.data());
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return file;
}

std::vector<std::byte> encode_jpeg(const JpegSpec& spec) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* buffer = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&jpeg, &buffer, &bytes);
  jpeg.image_width = spec.width;
  jpeg.image_height = spec.height;
  jpeg.input_components = spec.components;
  jpeg.in_color_space = spec.components == 1   ? JCS_GRAYSCALE
                        : spec.components == 3 ? JCS_RGB
                                               : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, spec.quality, TRUE);
  if (spec.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  std::vector<uint8_t> pixels = spec.pixels;
  const size_t row_bytes = static_cast<size_t>(spec.width) * static_cast<size_t>(spec.components);
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row = pixels.data() + jpeg.next_scanline * row_bytes;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  const auto* begin = reinterpret_cast<const std::byte*>(buffer);
  std::vector<std::byte> file(begin, begin + bytes);
  jpeg_destroy_compress(&jpeg);
  std::free(buffer);
  return file;
}

}  // namespace cedar::test
