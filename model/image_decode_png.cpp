// libpng reports errors by longjmp, which skips destructors. So everything that owns memory lives
// in Decoder, outside the functions that libpng is called from, and those hold no objects of their
// own.

#include <png.h>

#include <csetjmp>
#include <cstring>
#include <string>
#include <vector>

#include "model/image_decode.h"

namespace cedar::model {
namespace {

constexpr uint64_t kMaxDeflateRatio = 1032;

struct Decoder {
  explicit Decoder(std::span<const std::byte> bytes) : input(bytes) {}
  ~Decoder() {
    if (png != nullptr) png_destroy_read_struct(&png, info != nullptr ? &info : nullptr, nullptr);
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  std::span<const std::byte> input;
  size_t offset = 0;
  char message[160] = "";  // a fixed array: libpng's error handler must not allocate
  png_structp png = nullptr;
  png_infop info = nullptr;
};

void on_error(png_structp png, png_const_charp text) {
  auto* decoder = static_cast<Decoder*>(png_get_error_ptr(png));
  std::strncpy(decoder->message, text, sizeof decoder->message - 1);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep target, png_size_t count) {
  auto* decoder = static_cast<Decoder*>(png_get_io_ptr(png));
  if (count > decoder->input.size() - decoder->offset) png_error(png, "file is truncated");
  std::memcpy(target, decoder->input.data() + decoder->offset, count);
  decoder->offset += count;
}

bool read_header(Decoder& decoder) {
  if (setjmp(png_jmpbuf(decoder.png)) != 0) return false;
  png_set_read_fn(decoder.png, &decoder, on_read);
  png_read_info(decoder.png, decoder.info);
  return true;
}

/// Rows come out as 8-bit RGB, whatever the file holds.
bool set_conversions(Decoder& decoder, size_t* row_bytes) {
  if (setjmp(png_jmpbuf(decoder.png)) != 0) return false;
  const int colour = png_get_color_type(decoder.png, decoder.info);
  if (png_get_bit_depth(decoder.png, decoder.info) == 16) png_set_strip_16(decoder.png);
  if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(decoder.png);
  if ((colour & PNG_COLOR_MASK_COLOR) == 0) {
    png_set_expand_gray_1_2_4_to_8(decoder.png);
    png_set_gray_to_rgb(decoder.png);
  }
  // A tRNS chunk becomes alpha during palette expansion, so alpha is stripped in every case.
  png_set_strip_alpha(decoder.png);
  png_set_interlace_handling(decoder.png);
  png_read_update_info(decoder.png, decoder.info);
  *row_bytes = png_get_rowbytes(decoder.png, decoder.info);
  return true;
}

bool read_rows(Decoder& decoder, png_bytepp rows) {
  if (setjmp(png_jmpbuf(decoder.png)) != 0) return false;
  png_read_image(decoder.png, rows);
  png_read_end(decoder.png, nullptr);
  return true;
}

Error damaged(const Decoder& decoder) {
  return make_error(Errc::invalid_argument, std::string("image: damaged PNG: ") + decoder.message);
}

}  // namespace

Result<RgbImage> decode_png(std::span<const std::byte> bytes, const ImageLimits& limits) {
  Decoder decoder(bytes);
  decoder.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &decoder, on_error, on_warning);
  if (decoder.png != nullptr) decoder.info = png_create_info_struct(decoder.png);
  if (decoder.info == nullptr) return make_error(Errc::out_of_memory, "image: libpng state");

  // libpng has its own limits on sides; ours are checked below, where the message can name the
  // size.
  png_set_user_limits(decoder.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  if (!read_header(decoder)) return damaged(decoder);
  const auto width = static_cast<int64_t>(png_get_image_width(decoder.png, decoder.info));
  const auto height = static_cast<int64_t>(png_get_image_height(decoder.png, decoder.info));
  CEDAR_CHECK_OK(check_image_size(width, height, limits));

  // Deflate packs at most 1032 to 1: a file too short for its size is refused before memory is
  // taken for it.
  const uint64_t stored_bytes =
      png_get_rowbytes(decoder.png, decoder.info) * static_cast<uint64_t>(height);
  if (stored_bytes / kMaxDeflateRatio > bytes.size()) {
    return make_error(Errc::invalid_argument,
                      "image: damaged PNG: " + std::to_string(bytes.size()) +
                          " bytes cannot hold " + std::to_string(width) + "x" +
                          std::to_string(height) + " pixels");
  }

  size_t row_bytes = 0;
  if (!set_conversions(decoder, &row_bytes)) return damaged(decoder);
  if (row_bytes != static_cast<size_t>(width) * 3) {
    return make_error(Errc::invalid_argument, "image: PNG row of " + std::to_string(row_bytes) +
                                                  " bytes for width " + std::to_string(width));
  }
  CEDAR_TRY(RgbImage image, allocate_image(width, height));
  std::vector<png_bytep> rows(static_cast<size_t>(height));
  for (int64_t y = 0; y < height; ++y) rows[static_cast<size_t>(y)] = image.row(y);
  if (!read_rows(decoder, rows.data())) return damaged(decoder);
  return image;
}

}  // namespace cedar::model
