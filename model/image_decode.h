#pragma once
// PNG and JPEG bytes to RGB pixels. Its own target, cedar::image, because it needs libpng and
// libjpeg.
//
// Colours follow the release's processor: alpha is dropped without compositing, grey is repeated,
// palettes are looked up, 16-bit samples keep their high byte, gamma chunks and EXIF orientation
// are ignored.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/result.h"
#include "model/rgb_image.h"

namespace cedar::model {

/// What the sender of an image may make us allocate. Checked against the header, before any pixel.
struct ImageLimits {
  int64_t max_pixels = int64_t{64} << 20;
  int64_t max_side = 1 << 20;
};

enum class ImageFormat : uint8_t { unknown, png, jpeg };

/// By the signature alone.
ImageFormat detect_image_format(std::span<const std::byte> bytes);

/// Bytes come from strangers: any content gives pixels or invalid_argument (empty, unknown format,
/// damaged, truncated, larger than the limits), or out_of_memory. Thread-safe.
Result<RgbImage> decode_image(std::span<const std::byte> bytes, const ImageLimits& limits = {});

// One format each; decode_image chooses.
Result<RgbImage> decode_png(std::span<const std::byte> bytes, const ImageLimits& limits);
Result<RgbImage> decode_jpeg(std::span<const std::byte> bytes, const ImageLimits& limits);

/// Fails when an image of this size is empty or exceeds the limits; the text names both.
Status check_image_size(int64_t width, int64_t height, const ImageLimits& limits);

/// Space for width x height pixels. Errors: out_of_memory.
Result<RgbImage> allocate_image(int64_t width, int64_t height);

}  // namespace cedar::model
