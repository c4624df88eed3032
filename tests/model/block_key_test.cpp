#include "model/block_key.h"

#include <numeric>
#include <set>

#include <gtest/gtest.h>

namespace cedar::model {
namespace {

const std::string kMini = std::string(CEDAR_SOURCE_DIR) + "/tests/golden/mini";

std::vector<TokenId> counting(int64_t count) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

Sha256 bytes(uint8_t value) {
  Sha256 digest;
  digest.fill(value);
  return digest;
}

TEST(Sha256, KnownAnswer) {
  const std::string text = "abc";
  const BlockKey key{sha256({reinterpret_cast<const uint8_t*>(text.data()), text.size()})};
  EXPECT_EQ(key.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(BlockKey, OnlyWholeBlocksHaveKeys) {
  const BlockKey root = root_key(bytes(1), "salt");
  for (const auto& [tokens, blocks] : {std::pair{0, 0}, {3, 0}, {4, 1}, {7, 1}, {8, 2}}) {
    EXPECT_EQ(block_keys(root, counting(tokens), {}, 4).size(), static_cast<size_t>(blocks))
        << tokens;
  }
}

TEST(BlockKey, EqualPrefixesShareKeysAndNothingElseDoes) {
  const BlockKey root = root_key(bytes(1), "salt");
  const auto tokens = counting(16);
  const auto keys = block_keys(root, tokens, {}, 4);
  EXPECT_EQ(std::set<BlockKey>(keys.begin(), keys.end()).size(), 4u);

  auto longer = tokens;
  longer.push_back(7);
  EXPECT_EQ(block_keys(root, longer, {}, 4), keys);
  for (size_t changed = 0; changed < tokens.size(); ++changed) {
    auto other = tokens;
    other[changed] ^= 1;
    const auto other_keys = block_keys(root, other, {}, 4);
    for (size_t block = 0; block < keys.size(); ++block) {
      EXPECT_EQ(other_keys[block] == keys[block], block < changed / 4) << changed << " " << block;
    }
  }
}

TEST(BlockKey, StepsEqualTheWhole) {
  const BlockKey root = root_key(bytes(1), "salt");
  const auto tokens = counting(12);
  const std::vector<ImageDigest> images = {{3, 9, bytes(5)}};
  BlockKey key = root;
  std::vector<BlockKey> steps;
  for (int64_t begin = 0; begin < 12; begin += 4) {
    key = next_key(key, begin, std::span(tokens).subspan(static_cast<size_t>(begin), 4), images);
    steps.push_back(key);
  }
  EXPECT_EQ(steps, block_keys(root, tokens, images, 4));
}

TEST(BlockKey, ModelAndTenantSeparate) {
  const auto tokens = counting(4);
  std::set<BlockKey> seen;
  for (uint8_t model : {1, 2}) {
    for (const char* salt : {"", "a", "b", "ab"}) {
      seen.insert(block_keys(root_key(bytes(model), salt), tokens, {}, 4).front());
    }
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST(BlockKey, ImagesCountFromTheirFirstBlockOn) {
  const BlockKey root = root_key(bytes(1), "salt");
  const auto tokens = counting(16);
  const auto keys = [&](std::vector<ImageDigest> images) {
    return block_keys(root, tokens, images, 4);
  };
  const auto none = keys({});
  const auto one = keys({{6, 10, bytes(1)}});
  const auto other = keys({{6, 10, bytes(2)}});
  const auto moved = keys({{5, 10, bytes(1)}});
  EXPECT_EQ(none[0], one[0]);
  for (size_t block = 1; block < 4; ++block) {
    EXPECT_EQ(std::set<BlockKey>({none[block], one[block], other[block], moved[block]}).size(), 4u);
  }
  EXPECT_EQ(keys({{8, 12, bytes(1)}})[1], none[1]) << "an image that begins with the next block";
}

TEST(ModelFingerprint, IsTheSameForEveryRoleAndDiffersByModel) {
  const Checkpoint all = load_checkpoint(kMini, Role::all).value();
  const Sha256 fingerprint = model_fingerprint(all, "bf16");
  EXPECT_EQ(model_fingerprint(load_checkpoint(kMini, Role::encoder).value(), "bf16"), fingerprint);
  EXPECT_EQ(model_fingerprint(load_checkpoint(kMini, Role::decoder).value(), "bf16"), fingerprint);
  EXPECT_NE(model_fingerprint(all, "fp32"), fingerprint);
  const std::string demo = std::string(CEDAR_SOURCE_DIR) + "/config/demo";
  EXPECT_NE(model_fingerprint(load_checkpoint(demo, Role::all).value(), "bf16"), fingerprint);
}

}  // namespace
}  // namespace cedar::model
