#include "model/image_decode.h"

#include <algorithm>
#include <array>
#include <new>
#include <string>

namespace cedar::model {
namespace {

template <size_t N>
bool starts_with(std::span<const std::byte> bytes, const std::array<uint8_t, N>& signature) {
  if (bytes.size() < N) return false;
  return std::equal(signature.begin(), signature.end(), bytes.begin(),
                    [](uint8_t a, std::byte b) { return std::byte{a} == b; });
}

constexpr std::array<uint8_t, 8> kPngSignature = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
constexpr std::array<uint8_t, 3> kJpegSignature = {0xff, 0xd8, 0xff};

}  // namespace

ImageFormat detect_image_format(std::span<const std::byte> bytes) {
  if (starts_with(bytes, kPngSignature)) return ImageFormat::png;
  if (starts_with(bytes, kJpegSignature)) return ImageFormat::jpeg;
  return ImageFormat::unknown;
}

Status check_image_size(int64_t width, int64_t height, const ImageLimits& limits) {
  const std::string size = "image: " + std::to_string(width) + "x" + std::to_string(height);
  if (width <= 0 || height <= 0) return make_error(Errc::invalid_argument, size + " has no pixels");
  if (width > limits.max_side || height > limits.max_side) {
    return make_error(Errc::invalid_argument,
                      size + " has a side over " + std::to_string(limits.max_side) + " pixels");
  }
  if (width > limits.max_pixels / height) {
    return make_error(Errc::invalid_argument,
                      size + " has more than " + std::to_string(limits.max_pixels) + " pixels");
  }
  return {};
}

Result<RgbImage> allocate_image(int64_t width, int64_t height) {
  RgbImage image{width, height, {}};
  const auto bytes = static_cast<size_t>(width * height * 3);
  try {
    image.pixels.resize(bytes);
  } catch (const std::bad_alloc&) {
    return make_error(Errc::out_of_memory,
                      "image: no room for " + std::to_string(bytes) + " bytes");
  }
  return image;
}

Result<RgbImage> decode_image(std::span<const std::byte> bytes, const ImageLimits& limits) {
  if (bytes.empty()) return make_error(Errc::invalid_argument, "image: no bytes");
  switch (detect_image_format(bytes)) {
    case ImageFormat::png: return decode_png(bytes, limits);
    case ImageFormat::jpeg: return decode_jpeg(bytes, limits);
    case ImageFormat::unknown: break;
  }
  return make_error(Errc::invalid_argument,
                    "image: neither PNG nor JPEG (" + std::to_string(bytes.size()) + " bytes)");
}

}  // namespace cedar::model
