// libjpeg, too, reports errors by longjmp: the functions that call it hold no objects with
// destructors.

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

// jpeglib.h needs size_t and FILE to be declared before it.
#include <jpeglib.h>
// After it: the codes of its messages.
#include <jerror.h>

#include "model/image_decode.h"

namespace cedar::model {
namespace {

// A progressive file may repeat scans over the whole image at a few bytes each. Encoders write
// about ten.
constexpr int kMaxScans = 100;

struct Decoder {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf on_failure;
  char message[JMSG_LENGTH_MAX] = "";
  bool created = false;

  Decoder() = default;
  ~Decoder() {
    if (created) jpeg_destroy_decompress(&jpeg);
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
};

Decoder& decoder_of(j_common_ptr jpeg) { return *static_cast<Decoder*>(jpeg->client_data); }

[[noreturn]] void fail(j_common_ptr jpeg, const char* text) {
  Decoder& decoder = decoder_of(jpeg);
  std::strncpy(decoder.message, text, sizeof decoder.message - 1);
  std::longjmp(decoder.on_failure, 1);
}

[[noreturn]] void on_error(j_common_ptr jpeg) {
  Decoder& decoder = decoder_of(jpeg);
  (*jpeg->err->format_message)(jpeg, decoder.message);
  std::longjmp(decoder.on_failure, 1);
}

/// libjpeg fills a truncated file with grey and warns; other damage it conceals as every viewer
/// does.
void on_message(j_common_ptr jpeg, int level) {
  if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) fail(jpeg, "file is truncated");
}

void on_output(j_common_ptr) {}

void on_progress(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number > kMaxScans) {
    fail(jpeg, "too many scans");
  }
}

bool read_header(Decoder& decoder, std::span<const std::byte> bytes) {
  if (setjmp(decoder.on_failure) != 0) return false;
  decoder.jpeg.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = on_error;
  decoder.errors.emit_message = on_message;
  decoder.errors.output_message = on_output;
  decoder.jpeg.client_data = &decoder;
  jpeg_create_decompress(&decoder.jpeg);
  decoder.created = true;
  decoder.progress.progress_monitor = on_progress;
  decoder.jpeg.progress = &decoder.progress;
  jpeg_mem_src(&decoder.jpeg, reinterpret_cast<const unsigned char*>(bytes.data()),
               static_cast<unsigned long>(bytes.size()));
  jpeg_read_header(&decoder.jpeg, TRUE);
  return true;
}

/// `components`: values a pixel has in a decoded row, 3 or 4.
bool start(Decoder& decoder, int* components) {
  if (setjmp(decoder.on_failure) != 0) return false;
  // CMYK is as far as libjpeg converts the four-channel encodings; to_rgb does the rest.
  const bool four = decoder.jpeg.num_components == 4;
  decoder.jpeg.out_color_space = four ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&decoder.jpeg);
  *components = decoder.jpeg.output_components;
  return true;
}

bool read_row(Decoder& decoder, JSAMPROW row) {
  if (setjmp(decoder.on_failure) != 0) return false;
  return jpeg_read_scanlines(&decoder.jpeg, &row, 1) == 1;
}

bool finish(Decoder& decoder) {
  if (setjmp(decoder.on_failure) != 0) return false;
  jpeg_finish_decompress(&decoder.jpeg);
  return true;
}

uint8_t multiply_255(uint32_t a, uint32_t b) {
  const uint32_t product = a * b + 128;
  return static_cast<uint8_t>(((product >> 8) + product) >> 8);
}

/// Four-channel files store inverted ink, as Adobe's programs write them: 255 is no ink.
void inverted_cmyk_to_rgb(const uint8_t* cmyk, uint8_t* rgb, int64_t pixels) {
  for (int64_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    const uint32_t light = cmyk[3];
    for (int c = 0; c < 3; ++c) {
      const uint32_t ink = 255u - cmyk[c];
      rgb[c] = static_cast<uint8_t>(light - multiply_255(ink, light));
    }
  }
}

Error damaged(const Decoder& decoder) {
  return make_error(Errc::invalid_argument, std::string("image: damaged JPEG: ") + decoder.message);
}

}  // namespace

Result<RgbImage> decode_jpeg(std::span<const std::byte> bytes, const ImageLimits& limits) {
  Decoder decoder;
  if (!read_header(decoder, bytes)) return damaged(decoder);
  const auto width = static_cast<int64_t>(decoder.jpeg.image_width);
  const auto height = static_cast<int64_t>(decoder.jpeg.image_height);
  CEDAR_CHECK_OK(check_image_size(width, height, limits));

  int components = 0;
  if (!start(decoder, &components)) return damaged(decoder);
  CEDAR_TRY(RgbImage image, allocate_image(width, height));
  std::vector<uint8_t> cmyk(components == 4 ? static_cast<size_t>(width) * 4 : 0);
  for (int64_t y = 0; y < height; ++y) {
    uint8_t* row = components == 4 ? cmyk.data() : image.row(y);
    if (!read_row(decoder, row)) return damaged(decoder);
    if (components == 4) inverted_cmyk_to_rgb(row, image.row(y), width);
  }
  if (!finish(decoder)) return damaged(decoder);
  return image;
}

}  // namespace cedar::model
