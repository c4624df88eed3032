#include "model/bpe.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace cedar::model {
namespace {

std::array<TokenId, 256> identity_bytes() {
  std::array<TokenId, 256> bytes;
  std::iota(bytes.begin(), bytes.end(), 0);
  return bytes;
}

/// The rule as it is stated: the lowest rank, leftmost first, until nothing is left to merge.
std::vector<TokenId> naive_merge(const std::vector<MergeRule>& rules, std::string_view bytes) {
  std::map<std::pair<TokenId, TokenId>, size_t> ranks;
  for (size_t r = 0; r < rules.size(); ++r) ranks[{rules[r].left, rules[r].right}] = r;
  std::vector<TokenId> tokens;
  for (const char b : bytes) tokens.push_back(static_cast<uint8_t>(b));
  for (;;) {
    size_t best = rules.size(), at = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto it = ranks.find({tokens[i], tokens[i + 1]});
      if (it != ranks.end() && it->second < best) {
        best = it->second;
        at = i;
      }
    }
    if (best == rules.size()) return tokens;
    tokens[at] = rules[best].result;
    tokens.erase(tokens.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, EqualsTheStatedRuleOnRandomVocabularies) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    // Rules over a three-letter alphabet; results are numbered on, and two rules may share one.
    std::vector<MergeRule> rules;
    std::map<std::pair<TokenId, TokenId>, bool> seen;
    std::vector<TokenId> tokens = {'a', 'b', 'c'};
    for (int r = 0; r < 40; ++r) {
      const TokenId left = tokens[random() % tokens.size()],
                    right = tokens[random() % tokens.size()];
      if (seen[{left, right}]) continue;
      seen[{left, right}] = true;
      const bool shared = !rules.empty() && random() % 4 == 0;
      const TokenId result = shared ? rules[random() % rules.size()].result : 256 + r;
      rules.push_back({left, right, result});
      if (!shared) tokens.push_back(result);
    }
    std::shuffle(rules.begin(), rules.end(), random);
    const BpeMerger merger(identity_bytes(), rules);
    BpeScratch scratch;
    for (int text = 0; text < 50; ++text) {
      std::string bytes(1 + random() % 24, 'a');
      for (char& b : bytes) b = static_cast<char>('a' + random() % 3);
      std::vector<TokenId> out = {-5};  // results are appended
      merger.merge(bytes, scratch, out);
      out.erase(out.begin());
      ASSERT_EQ(out, naive_merge(rules, bytes)) << bytes;
    }
  }
}

TEST(Bpe, RepeatedPairsMergeFromTheLeft) {
  const BpeMerger merger(identity_bytes(), {{'a', 'a', 256}, {256, 256, 257}});
  BpeScratch scratch;
  std::vector<TokenId> out;
  merger.merge("aaaaaaa", scratch, out);
  EXPECT_EQ(out, (std::vector<TokenId>{257, 256, 'a'}));
  out.clear();
  merger.merge("", scratch, out);
  EXPECT_TRUE(out.empty());
}

TEST(WordTable, FindsWholeWordsOnly) {
  const std::vector<std::string> bytes = {"a", "longer than eight bytes", "", "ab", "same"};
  const WordTable table(bytes, {0, 1, 3});
  EXPECT_EQ(table.find("a"), 0);
  EXPECT_EQ(table.find("ab"), 3);
  EXPECT_EQ(table.find("longer than eight bytes"), 1);
  EXPECT_EQ(table.find("longer than eight byteS"), -1);
  EXPECT_EQ(table.find("same"), -1);  // not among the words
  EXPECT_EQ(table.find(""), -1);
}

}  // namespace
}  // namespace cedar::model
