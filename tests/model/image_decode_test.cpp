#include "model/image_decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "tests/model/image_files.h"
#include "tests/model/synthetic_image.h"

namespace cedar::model {
namespace {

using test::encode_jpeg;
using test::encode_png;
using test::JpegSpec;
using test::PngSpec;
using test::synthetic_image;
using ::testing::HasSubstr;

const std::string kGolden = std::string(CEDAR_SOURCE_DIR) + "/tests/golden/";

std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

void put_u32(std::vector<std::byte>& file, size_t offset, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) file[offset + i] = static_cast<std::byte>(value >> (24 - 8 * i));
}

/// The checksum of a PNG chunk: CRC-32 over its type and data.
uint32_t crc32(std::span<const std::byte> bytes) {
  uint32_t crc = 0xffffffffu;
  for (const std::byte b : bytes) {
    crc ^= static_cast<uint32_t>(b);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xedb88320u : 0u);
  }
  return ~crc;
}

/// A valid header that claims another size.
std::vector<std::byte> png_with_size(uint32_t width, uint32_t height) {
  std::vector<std::byte> file = read_file(kGolden + "image.png");
  put_u32(file, 16, width);
  put_u32(file, 20, height);
  put_u32(file, 29, crc32(std::span(file).subspan(12, 17)));
  return file;
}

JpegSpec jpeg_spec(const RgbImage& image) {
  return {.width = static_cast<uint32_t>(image.width),
          .height = static_cast<uint32_t>(image.height),
          .pixels = image.pixels};
}

TEST(ImageDecode, GoldenPngGivesTheGoldenPixels) {
  const auto image = decode_image(read_file(kGolden + "image.png"));
  ASSERT_TRUE(image) << image.error().message();
  const auto file = SafetensorsFile::open(kGolden + "vision.safetensors").value();
  const auto pixels = file->find("pixels")->as<uint8_t>();
  EXPECT_EQ(image->width, 40);
  EXPECT_EQ(image->height, 30);
  EXPECT_THAT(image->pixels, ::testing::ElementsAreArray(pixels.begin(), pixels.end()));
}

struct PngCase {
  const char* name;
  PngSpec spec;
  std::vector<uint8_t> expected;
};

// gtest names the cases by printing them.
void PrintTo(const PngCase& c, std::ostream* out) { *out << c.name; }

class PngColour : public ::testing::TestWithParam<PngCase> {};

TEST_P(PngColour, BecomesRgb) {
  const PngCase& c = GetParam();
  for (const bool interlaced : {false, true}) {
    PngSpec spec = c.spec;
    spec.interlaced = interlaced;
    const auto image = decode_image(encode_png(spec));
    ASSERT_TRUE(image) << c.name << image.error().message();
    EXPECT_EQ(image->width, spec.width);
    EXPECT_EQ(image->height, spec.height);
    EXPECT_EQ(image->pixels, c.expected) << c.name << " interlaced " << interlaced;
  }
}

const std::vector<uint8_t> kPalette = {10, 20, 30, 40, 50, 60, 70, 80, 90, 200, 210, 220};

INSTANTIATE_TEST_SUITE_P(
    AllTypes, PngColour,
    ::testing::Values(
        PngCase{"grey1",
                {2, 2, 1, 0, false, {}, {}, {0x80, 0x40}},
                {255, 255, 255, 0, 0, 0, 0, 0, 0, 255, 255, 255}},
        PngCase{"grey2", {3, 1, 2, 0, false, {}, {}, {0x1b}}, {0, 0, 0, 85, 85, 85, 170, 170, 170}},
        PngCase{"grey4", {2, 1, 4, 0, false, {}, {}, {0x2f}}, {34, 34, 34, 255, 255, 255}},
        PngCase{"grey8", {2, 1, 8, 0, false, {}, {}, {7, 250}}, {7, 7, 7, 250, 250, 250}},
        PngCase{
            "grey16", {1, 2, 16, 0, false, {}, {}, {7, 255, 250, 128}}, {7, 7, 7, 250, 250, 250}},
        PngCase{
            "grey_alpha", {2, 1, 8, 4, false, {}, {}, {7, 0, 250, 9}}, {7, 7, 7, 250, 250, 250}},
        PngCase{"rgb8", {1, 2, 8, 2, false, {}, {}, {1, 2, 3, 4, 5, 6}}, {1, 2, 3, 4, 5, 6}},
        PngCase{"rgb16", {1, 1, 16, 2, false, {}, {}, {1, 200, 2, 200, 3, 200}}, {1, 2, 3}},
        PngCase{"rgba_keeps_hidden_colour",
                {2, 1, 8, 6, false, {}, {}, {1, 2, 3, 0, 4, 5, 6, 255}},
                {1, 2, 3, 4, 5, 6}},
        PngCase{"palette1",
                {2, 1, 1, 3, false, {10, 20, 30, 40, 50, 60}, {}, {0x40}},
                {10, 20, 30, 40, 50, 60}},
        PngCase{"palette2_transparent", {4, 1, 2, 3, false, kPalette, {0, 128}, {0x1b}}, kPalette},
        PngCase{
            "palette8", {2, 1, 8, 3, false, kPalette, {}, {3, 1}}, {200, 210, 220, 40, 50, 60}}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(ImageDecode, JpegIsCloseToWhatWasEncoded) {
  RgbImage image = synthetic_image(64, 48, 3);
  for (size_t i = 0; i < image.pixels.size(); ++i) {  // smooth, which JPEG keeps well
    image.pixels[i] = static_cast<uint8_t>(60 + (i / 3 % 64) + (i / 192) + 20 * (i % 3));
  }
  for (const bool progressive : {false, true}) {
    JpegSpec spec = jpeg_spec(image);
    spec.progressive = progressive;
    const auto decoded = decode_image(encode_jpeg(spec));
    ASSERT_TRUE(decoded) << decoded.error().message();
    ASSERT_EQ(decoded->pixels.size(), image.pixels.size());
    int worst = 0;
    for (size_t i = 0; i < image.pixels.size(); ++i) {
      worst = std::max(worst, std::abs(int{image.pixels[i]} - int{decoded->pixels[i]}));
    }
    EXPECT_LE(worst, 12) << progressive;
  }
}

TEST(ImageDecode, GreyAndCmykJpegBecomeRgb) {
  const auto grey = decode_image(encode_jpeg(
      {.width = 8, .height = 8, .components = 1, .pixels = std::vector<uint8_t>(64, 90)}));
  ASSERT_TRUE(grey) << grey.error().message();
  EXPECT_EQ(grey->pixels, std::vector<uint8_t>(192, 90));

  std::vector<uint8_t> cmyk;  // inverted ink: some cyan, no magenta, all yellow, a little black
  for (int i = 0; i < 64; ++i) cmyk.insert(cmyk.end(), {100, 255, 0, 200});
  const auto colour = decode_image(
      encode_jpeg({.width = 8, .height = 8, .components = 4, .quality = 100, .pixels = cmyk}));
  ASSERT_TRUE(colour) << colour.error().message();
  EXPECT_NEAR(colour->pixels[0], 78, 1);
  EXPECT_NEAR(colour->pixels[1], 200, 1);
  EXPECT_NEAR(colour->pixels[2], 0, 1);
}

TEST(ImageDecode, RefusesWhatIsNoImage) {
  EXPECT_THAT(decode_image({}).error().context, HasSubstr("no bytes"));
  const std::vector<std::byte> text(12, std::byte{'x'});
  EXPECT_EQ(decode_image(text).error().code, Errc::invalid_argument);
  EXPECT_THAT(decode_image(text).error().context, HasSubstr("neither PNG nor JPEG (12 bytes)"));
  const auto png = read_file(kGolden + "image.png");
  EXPECT_EQ(decode_image(std::span(png).first(8)).error().code, Errc::invalid_argument);
  const std::vector<std::byte> soi = {std::byte{0xff}, std::byte{0xd8}, std::byte{0xff}};
  EXPECT_EQ(decode_image(soi).error().code, Errc::invalid_argument);
}

TEST(ImageDecode, RefusesEveryTruncation) {
  const auto png = read_file(kGolden + "image.png");
  for (size_t n = 0; n < png.size(); ++n) {
    const auto image = decode_image(std::span(png).first(n));
    ASSERT_FALSE(image) << n;
    EXPECT_EQ(image.error().code, Errc::invalid_argument) << n;
  }
  for (const bool progressive : {false, true}) {
    JpegSpec spec = jpeg_spec(synthetic_image(24, 17, 5));
    spec.progressive = progressive;
    const auto jpeg = encode_jpeg(spec);
    ASSERT_TRUE(decode_image(jpeg));
    for (size_t n = 0; n < jpeg.size() - 2; ++n) {  // all but the end marker
      const auto image = decode_image(std::span(jpeg).first(n));
      ASSERT_FALSE(image) << n << " of " << jpeg.size();
      EXPECT_EQ(image.error().code, Errc::invalid_argument) << n;
    }
  }
}

TEST(ImageDecode, RefusesSizesOverTheLimitBeforeReadingPixels) {
  const auto wide = decode_image(png_with_size(0x7fffffff, 0x7fffffff));
  ASSERT_FALSE(wide);
  EXPECT_EQ(wide.error().code, Errc::invalid_argument);
  EXPECT_THAT(wide.error().context, HasSubstr("2147483647x2147483647"));
  const auto many = decode_image(png_with_size(60'000, 60'000));
  ASSERT_FALSE(many);
  EXPECT_THAT(many.error().context, HasSubstr("60000x60000 has more than 67108864 pixels"));
  EXPECT_FALSE(decode_image(png_with_size(0, 10)));

  const auto png = read_file(kGolden + "image.png");
  EXPECT_TRUE(decode_image(png, {.max_pixels = 1200}));
  EXPECT_THAT(decode_image(png, {.max_pixels = 1199}).error().context, HasSubstr("40x30"));
  EXPECT_THAT(decode_image(png, {.max_side = 39}).error().context, HasSubstr("side over 39"));
  const auto jpeg = encode_jpeg(jpeg_spec(synthetic_image(20, 10, 1)));
  EXPECT_THAT(decode_image(jpeg, {.max_pixels = 199}).error().context, HasSubstr("20x10"));
}

TEST(ImageDecode, RefusesAFileTooShortForItsSizeWithoutTakingMemory) {
  const auto image =
      decode_image(png_with_size(8000, 8000));  // inside the limits, 192 MB of pixels
  ASSERT_FALSE(image);
  EXPECT_EQ(image.error().code, Errc::invalid_argument);
  EXPECT_THAT(image.error().context, HasSubstr("cannot hold 8000x8000"));
}

TEST(ImageDecode, RefusesEndlessProgressiveScans) {
  JpegSpec spec = jpeg_spec(synthetic_image(16, 16, 2));
  spec.progressive = true;
  std::vector<std::byte> file = encode_jpeg(spec);
  // Repeat the last scan (from its SOS marker to the end marker) until a decoder would be busy for
  // long.
  size_t scan = 0;
  for (size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == std::byte{0xff} && file[i + 1] == std::byte{0xda}) scan = i;
  }
  const std::vector<std::byte> last(file.begin() + static_cast<std::ptrdiff_t>(scan),
                                    file.end() - 2);
  file.resize(file.size() - 2);
  for (int i = 0; i < 200; ++i) file.insert(file.end(), last.begin(), last.end());
  file.insert(file.end(), {std::byte{0xff}, std::byte{0xd9}});
  const auto image = decode_image(file);
  ASSERT_FALSE(image);
  EXPECT_THAT(image.error().context, HasSubstr("too many scans"));
}

/// Whatever happens to the bytes: pixels of the claimed size, or an error that says so. True for
/// pixels.
bool expect_sane(std::span<const std::byte> file) {
  const auto image = decode_image(file, {.max_pixels = 1 << 20});
  if (image) {
    EXPECT_EQ(static_cast<int64_t>(image->pixels.size()), image->width * image->height * 3);
  } else {
    EXPECT_EQ(image.error().code, Errc::invalid_argument);
    EXPECT_THAT(image.error().context, HasSubstr("image: "));
  }
  return image.has_value();
}

std::vector<std::byte> mutate(std::vector<std::byte> file, std::mt19937& random) {
  const int changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < changes && !file.empty(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(random() % file.size());
    switch (random() % 4) {
      case 0: file[static_cast<size_t>(at)] = static_cast<std::byte>(random()); break;
      case 1: file[static_cast<size_t>(at)] ^= static_cast<std::byte>(1u << (random() % 8)); break;
      case 2: file.erase(file.begin() + at); break;
      default: file.insert(file.begin() + at, static_cast<std::byte>(random())); break;
    }
  }
  return file;
}

/// Chunk checksums made right again, so that damage reaches the code behind them.
void repair_checksums(std::vector<std::byte>& file) {
  for (size_t at = 8; at + 12 <= file.size();) {
    size_t length = 0;
    for (size_t i = 0; i < 4; ++i) length = length << 8 | static_cast<size_t>(file[at + i]);
    if (length > file.size() - at - 12) return;
    put_u32(file, at + 8 + length, crc32(std::span(file).subspan(at + 4, length + 4)));
    at += length + 12;
  }
}

TEST(ImageDecode, MutatedPngNeverCrashes) {
  std::mt19937 random(7);
  std::vector<std::vector<std::byte>> seeds = {read_file(kGolden + "image.png")};
  for (const bool interlaced : {false, true}) {
    seeds.push_back(encode_png({4,
                                9,
                                2,
                                3,
                                interlaced,
                                kPalette,
                                {0, 128},
                                {0x1b, 0xe4, 0x1b, 0xe4, 0x1b, 0xe4, 0x1b, 0xe4, 0x1b}}));
    seeds.push_back(encode_png({5, 3, 16, 6, interlaced, {}, {}, std::vector<uint8_t>(120, 77)}));
  }
  int decoded = 0;
  int refused = 0;
  for (const auto& seed : seeds) {
    for (int i = 0; i < 1500; ++i) {
      std::vector<std::byte> file = mutate(seed, random);
      expect_sane(file);
      repair_checksums(file);
      ++(expect_sane(file) ? decoded : refused);
    }
  }
  EXPECT_GT(decoded, 100);  // the mutations reach past the header's checks
  EXPECT_GT(refused, 1000);
}

TEST(ImageDecode, MutatedJpegNeverCrashes) {
  std::mt19937 random(8);
  int decoded = 0;
  int refused = 0;
  for (const bool progressive : {false, true}) {
    for (const int components : {1, 3, 4}) {
      JpegSpec spec{.width = 19,
                    .height = 11,
                    .components = components,
                    .quality = 60,
                    .progressive = progressive};
      for (int i = 0; i < 19 * 11 * components; ++i)
        spec.pixels.push_back(static_cast<uint8_t>(random()));
      const auto seed = encode_jpeg(spec);
      for (int i = 0; i < 500; ++i) ++(expect_sane(mutate(seed, random)) ? decoded : refused);
    }
  }
  EXPECT_GT(decoded, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace cedar::model
