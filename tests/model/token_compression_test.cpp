#include "model/token_compression.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/engram_layout.h"
#include "model/safetensors.h"
#include "tests/model/golden_text.h"

namespace cedar::model {
namespace {

ModelConfig config_with(int64_t distinct) {
  ModelConfig config;
  config.engram_compressed_vocab_size = distinct;
  return config;
}

TEST(FoldTokenText, FollowsTheReferenceChain) {
  EXPECT_EQ(fold_token_text("Hello"), "hello");
  EXPECT_EQ(fold_token_text(" café"), "cafe");
  EXPECT_EQ(fold_token_text("CAFE\u0301"), "cafe");
  EXPECT_EQ(fold_token_text("ﬁle"), "file");  // compatibility decomposition
  EXPECT_EQ(fold_token_text("Ⅷ½"), "viii1⁄2");
  EXPECT_EQ(fold_token_text("İ"), "i");    // the dot is a mark and goes before lower-casing
  EXPECT_EQ(fold_token_text("ΑΣ"), "ασ");  // no final sigma: characters are lowered one by one
  EXPECT_EQ(fold_token_text("한"), "\u1112\u1161\u11AB");
  EXPECT_EQ(fold_token_text("कि"), "क");  // spacing marks are combining marks too
  EXPECT_EQ(fold_token_text("a \t\r\n b"), "a b");
  EXPECT_EQ(fold_token_text("\u00A0x\u2003"), "x");
  EXPECT_EQ(fold_token_text("\u0085x\u2028"), "x");  // stripped although never collapsed
}

// B39: the sentinel keeps a lone blank apart from an empty text.
TEST(FoldTokenText, ALoneBlankIsNotEmpty) {
  EXPECT_EQ(fold_token_text(""), "");
  EXPECT_EQ(fold_token_text(" "), " ");
  EXPECT_EQ(fold_token_text("\n\n\t"), " ");
  EXPECT_EQ(fold_token_text("\u3000"), " ");
  EXPECT_EQ(fold_token_text("\u2028"), "");
  EXPECT_EQ(fold_token_text("\u0301"), "");
}

TEST(TokenCompression, EqualsTheGoldenMapOfTheMiniModel) {
  const auto tokenizer = load_tokenizer(mini_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  const auto map = make_token_compression(*tokenizer, config_with(1010));
  ASSERT_TRUE(map) << map.error().message();
  const auto units = SafetensorsFile::open(golden_path("units.safetensors"));
  ASSERT_TRUE(units) << units.error().message();
  const TensorView* golden = (*units)->find("engram.compressed_token_map");
  ASSERT_NE(golden, nullptr);
  std::vector<int64_t> expected(static_cast<size_t>(map->size()));
  ASSERT_EQ(golden->shape, std::vector<int64_t>{map->size()});
  std::memcpy(expected.data(), golden->data, expected.size() * sizeof(int64_t));
  EXPECT_EQ(std::vector<int64_t>(map->map().begin(), map->map().end()), expected);
  EXPECT_EQ(map->distinct(), 1010);
}

TEST(TokenCompression, CountsTheDemoModelsKeys) {
  const auto tokenizer = load_tokenizer(demo_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  EXPECT_TRUE(make_token_compression(*tokenizer, config_with(3405)));
}

TEST(TokenCompression, RefusesAnotherCount) {
  const auto tokenizer = load_tokenizer(mini_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  const auto map = make_token_compression(*tokenizer, config_with(1011));
  ASSERT_FALSE(map);
  EXPECT_EQ(map.error().code, Errc::invalid_config);
  EXPECT_THAT(map.error().context, testing::HasSubstr("engram_compressed_vocab_size"));
  EXPECT_THAT(map.error().context, testing::HasSubstr("1010"));
}

// The digest is that of the map computed with Python's unicodedata 14.0 from the same rules; the
// reference names the count alone. Another Unicode version that moved one token would change it.
TEST(TokenCompression, ReproducesTheReleasesMap) {
  const auto tokenizer = load_tokenizer(release_tokenizer_path());
  ASSERT_TRUE(tokenizer);
  const auto map = make_token_compression(*tokenizer, config_with(99092));
  ASSERT_TRUE(map) << map.error().message();
  EXPECT_EQ(map->size(), 129280);
  uint64_t digest = 0xCBF29CE484222325;  // FNV-1a over the ids as little-endian 32-bit words
  for (const int32_t id : map->map()) {
    for (int shift = 0; shift < 32; shift += 8) {
      digest = (digest ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3;
    }
  }
  EXPECT_EQ(digest, 0x6B5CFA68A5F57BA6);
}

}  // namespace
}  // namespace cedar::model
