#include "model/image_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace cedar::model {
namespace {

constexpr double kSupport = 2.0;   // of the bicubic kernel, in source pixels at scale 1
constexpr int kFractionBits = 22;  // 32 - 8 bits of pixel - 2 bits of head room for overshoot

/// Catmull-Rom: the cubic convolution kernel with a = -1/2.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

/// Which source pixels make an output pixel, and their fixed-point weights.
struct Taps {
  struct Window {
    int64_t first = 0;
    int64_t count = 0;
  };
  std::vector<Window> windows;   // [out]
  std::vector<int32_t> weights;  // [out, stride]
  int64_t stride = 0;
};

int32_t to_fixed_point(double weight) {
  const double scaled = weight * (1 << kFractionBits);
  return static_cast<int32_t>(weight < 0 ? scaled - 0.5 : scaled + 0.5);  // halves away from zero
}

Taps make_taps(int64_t in, int64_t out) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double filter_scale = std::max(scale, 1.0);  // enlarging keeps the kernel's own width
  const double support = kSupport * filter_scale;
  const double inverse = 1.0 / filter_scale;

  Taps taps;
  taps.stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  taps.windows.resize(static_cast<size_t>(out));
  taps.weights.resize(static_cast<size_t>(out * taps.stride));
  std::vector<double> window(static_cast<size_t>(taps.stride));
  for (int64_t x = 0; x < out; ++x) {
    const double center = (static_cast<double>(x) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t end = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5), in);
    double sum = 0;
    for (int64_t i = 0; i < end - first; ++i) {
      const double weight = bicubic((static_cast<double>(i + first) - center + 0.5) * inverse);
      window[static_cast<size_t>(i)] = weight;
      sum += weight;
    }
    taps.windows[static_cast<size_t>(x)] = {first, end - first};
    for (int64_t i = 0; i < end - first; ++i) {
      const double weight = window[static_cast<size_t>(i)];
      taps.weights[static_cast<size_t>(x * taps.stride + i)] =
          to_fixed_point(sum != 0.0 ? weight / sum : weight);
    }
  }
  return taps;
}

uint8_t to_pixel(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kFractionBits, 0, 255));
}

constexpr int32_t kHalf = 1 << (kFractionBits - 1);

/// Source rows [first_row, first_row + rows) to `width` columns.
RgbImage resample_columns(const RgbImage& image, int64_t width, int64_t first_row, int64_t rows) {
  const Taps taps = make_taps(image.width, width);
  RgbImage result{width, rows, std::vector<uint8_t>(static_cast<size_t>(width * rows * 3))};
  for (int64_t y = 0; y < rows; ++y) {
    const uint8_t* source = image.row(first_row + y);
    uint8_t* target = result.row(y);
    for (int64_t x = 0; x < width; ++x, target += 3) {
      const Taps::Window window = taps.windows[static_cast<size_t>(x)];
      const int32_t* weights = taps.weights.data() + x * taps.stride;
      const uint8_t* pixel = source + window.first * 3;
      int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (int64_t i = 0; i < window.count; ++i, pixel += 3) {
        red += pixel[0] * weights[i];
        green += pixel[1] * weights[i];
        blue += pixel[2] * weights[i];
      }
      target[0] = to_pixel(red);
      target[1] = to_pixel(green);
      target[2] = to_pixel(blue);
    }
  }
  return result;
}

/// `image` holds the source rows from `first_row` on; windows of `taps` count in source rows.
RgbImage resample_rows(const RgbImage& image, const Taps& taps, int64_t first_row) {
  const int64_t height = static_cast<int64_t>(taps.windows.size());
  const int64_t row_bytes = image.width * 3;
  RgbImage result{image.width, height,
                  std::vector<uint8_t>(static_cast<size_t>(row_bytes * height))};
  std::vector<int32_t> sums(static_cast<size_t>(row_bytes));
  for (int64_t y = 0; y < height; ++y) {
    const Taps::Window window = taps.windows[static_cast<size_t>(y)];
    const int32_t* weights = taps.weights.data() + y * taps.stride;
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int64_t i = 0; i < window.count; ++i) {
      const uint8_t* source = image.row(window.first - first_row + i);
      const int32_t weight = weights[i];
      for (int64_t b = 0; b < row_bytes; ++b) sums[static_cast<size_t>(b)] += source[b] * weight;
    }
    uint8_t* target = result.row(y);
    for (int64_t b = 0; b < row_bytes; ++b) target[b] = to_pixel(sums[static_cast<size_t>(b)]);
  }
  return result;
}

std::string to_string(ImageSize size) {
  return std::to_string(size.width) + "x" + std::to_string(size.height);
}

int64_t round_half_even(double x) { return static_cast<int64_t>(std::nearbyint(x)); }

}  // namespace

Result<RgbImage> resize_bicubic(const RgbImage& image, ImageSize size) {
  const ImageSize from{image.width, image.height};
  if (image.width <= 0 || image.height <= 0 ||
      static_cast<int64_t>(image.pixels.size()) != image.width * image.height * 3) {
    return make_error(Errc::invalid_argument, "image: " + to_string(from) + " pixels with " +
                                                  std::to_string(image.pixels.size()) + " bytes");
  }
  if (size.width <= 0 || size.height <= 0) {
    return make_error(Errc::invalid_argument,
                      "image: " + to_string(from) + " cannot be resized to " + to_string(size));
  }
  if (size == from) return image;
  if (size.height == from.height) return resample_columns(image, size.width, 0, from.height);

  const Taps taps = make_taps(from.height, size.height);
  if (size.width == from.width) return resample_rows(image, taps, 0);
  // Windows move down with the output row, so the first and last bound the rows that are read.
  const int64_t first_row = taps.windows.front().first;
  const int64_t end_row = taps.windows.back().first + taps.windows.back().count;
  return resample_rows(resample_columns(image, size.width, first_row, end_row - first_row), taps,
                       first_row);
}

ImageSize fit_inside(ImageSize from, ImageSize box) {
  const double width = static_cast<double>(from.width);
  const double height = static_cast<double>(from.height);
  const double aspect = width / height;
  const double box_aspect = static_cast<double>(box.width) / static_cast<double>(box.height);
  if (aspect > box_aspect) {
    return {box.width, round_half_even(height / width * static_cast<double>(box.width))};
  }
  if (aspect < box_aspect) {
    return {round_half_even(width / height * static_cast<double>(box.height)), box.height};
  }
  return box;
}

Result<RgbImage> resize_and_pad(const RgbImage& image, ImageSize size,
                                std::array<uint8_t, 3> fill) {
  const ImageSize inner =
      image.width > 0 && image.height > 0 ? fit_inside({image.width, image.height}, size) : size;
  CEDAR_TRY(RgbImage resized, resize_bicubic(image, inner));
  if (inner == size) return resized;

  RgbImage canvas{size.width, size.height,
                  std::vector<uint8_t>(static_cast<size_t>(size.width * size.height * 3))};
  for (size_t i = 0; i < canvas.pixels.size(); i += 3) {
    std::copy(fill.begin(), fill.end(), canvas.pixels.begin() + static_cast<std::ptrdiff_t>(i));
  }
  const int64_t left = round_half_even(static_cast<double>(size.width - inner.width) * 0.5);
  const int64_t top = round_half_even(static_cast<double>(size.height - inner.height) * 0.5);
  for (int64_t y = 0; y < inner.height; ++y) {
    std::memcpy(canvas.row(top + y) + left * 3, resized.row(y),
                static_cast<size_t>(inner.width * 3));
  }
  return canvas;
}

}  // namespace cedar::model
