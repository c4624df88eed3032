// Masks against brute force, the cache's bounds, copies of states, and the pieces below them.

#include <atomic>
#include <thread>

#include "engine/structured/char_set.h"
#include "engine/structured/mask_cache.h"
#include "engine/structured/token_trie.h"
#include "tests/engine/structured/fixture.h"

namespace cedar::engine::structured {
namespace {

// Long counters are shortened before a mask is looked up; this compares with trying every token.
TEST(Mask, IsWhatEveryTokenSaysByItself) {
  TestVocabulary& vocabulary = TestVocabulary::demo();
  for (const char* schema :
       {R"({"type":"string","maxLength":500})", R"({"type":"string","minLength":490})",
        R"({"type":"string","maxLength":6})", R"({"type":"array","maxItems":400,"minItems":3})",
        R"({"type":"object","additionalProperties":{"type":"integer"}})"}) {
    OutputState state = vocabulary.start(schema_rules(schema));
    std::mt19937_64 random(3);
    for (int step = 0; step < 40 && !state.finished(); ++step) {
      const auto mask = state.mask();
      ASSERT_TRUE(mask);
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < vocabulary.tokenizer->size(); ++id) {
        OutputState copy = state;
        const bool taken = copy.accept(id);
        ASSERT_EQ(taken, (*mask)->allows(id)) << schema << " step " << step << " token " << id;
        if (taken && id != 1) allowed.push_back(id);
      }
      if (allowed.empty()) break;
      ASSERT_TRUE(state.accept(allowed[random() % allowed.size()]));
    }
  }
}

TEST(Mask, AddedTokensNeverComeInsideAValue) {
  TestVocabulary& vocabulary = TestVocabulary::release();
  OutputState state = vocabulary.start(schema_rules(R"({"type":"string"})"));
  ASSERT_TRUE(state.accept(vocabulary.tokenizer->encode("\"", false).front()));
  const auto mask = state.mask();
  ASSERT_TRUE(mask);
  EXPECT_GT((*mask)->count(), 100'000);
  for (TokenId id = 0; id < vocabulary.tokenizer->size(); ++id) {
    if (vocabulary.tokenizer->is_added(id)) {
      EXPECT_FALSE((*mask)->allows(id)) << id;
    }
  }
}

TEST(Mask, ACopyGoesItsOwnWay) {
  TestVocabulary& vocabulary = TestVocabulary::demo();
  const auto token = [&](const char* text) { return vocabulary.by_bytes.find(text)->second; };
  OutputState state = vocabulary.start(schema_rules(R"({"enum":["ab","ac"]})"));
  ASSERT_TRUE(state.accept(token("\"")));
  ASSERT_TRUE(state.accept(token("a")));
  OutputState draft = state;
  ASSERT_TRUE(draft.accept(token("b")));
  ASSERT_TRUE(draft.accept(token("\"")));
  ASSERT_TRUE(draft.accept(1));
  EXPECT_TRUE(draft.finished());
  EXPECT_FALSE(draft.mask());
  EXPECT_FALSE(draft.accept(1));
  EXPECT_FALSE(state.accept(1));
  EXPECT_TRUE(state.accept(token("c")));
}

TEST(Mask, UnknownTokensAreRefused) {
  OutputState state = TestVocabulary::demo().start(schema_rules("{}"));
  for (const TokenId id : {-1, 0, 2, 4093, 4095, 4096, 1 << 30}) EXPECT_FALSE(state.accept(id));
}

TEST(Mask, SequencesShareMasksAndTheCacheIsBounded) {
  const auto tokenizer = TestVocabulary::demo().tokenizer;
  Constraints::Options options;
  options.mask_bytes = 20'000;
  options.compiled_rules = 2;
  const auto constraints = Constraints::create(tokenizer, tokenizer->size(), 1, options);
  const auto rules = [](int max) {
    return to_text(schema_rules(R"({"type":"string","maxLength":)" + std::to_string(max) + "}"));
  };
  auto first = constraints->start(rules(5)), second = constraints->start(rules(5));
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first->mask(), *second->mask());  // the same object
  EXPECT_EQ(constraints->mask_counts().masks, 1);
  for (int i = 0; i < 100; ++i) {
    auto state = constraints->start(rules(i));
    ASSERT_TRUE(state);
    ASSERT_TRUE(state->mask());
  }
  EXPECT_LE(constraints->mask_counts().bytes, 20'000U);
  EXPECT_GT(constraints->mask_counts().masks, 10);
  // What was pushed out is made again, and states outlive their rules' place in the cache.
  EXPECT_TRUE(first->mask());
}

TEST(Mask, ThreadsMayShareEverything) {
  TestVocabulary& vocabulary = TestVocabulary::demo();
  const auto constraints = Constraints::create(vocabulary.tokenizer, 4096, 1);
  const std::string rules = to_text(schema_rules("{}"));
  const auto ids = vocabulary.tokenizer->encode(R"({"a": [1, "x", {"b": null}], "c": 1.5})", false);
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        auto state = constraints->start(rules);
        if (state && takes(*state, ids)) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 80);
}

TEST(TokenMask, AppliesToLogits) {
  TokenMask mask(130);
  for (const TokenId id : {0, 63, 64, 129}) mask.allow(id);
  std::vector<float> logits(140, 1.0F);
  mask.apply(logits);
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_EQ(logits[i] == 1.0F, mask.allows(static_cast<TokenId>(i))) << i;
  }
  EXPECT_EQ(mask.count(), 4);
  EXPECT_FALSE(mask.allows(-1));
  EXPECT_FALSE(mask.allows(130));
}

TEST(TokenTrie, HoldsEveryTokenOnceAndSkipsWholeBranches) {
  const TokenTrie trie({{"b", 1}, {"abc", 2}, {"a", 3}, {"abd", 4}, {"b", 5}, {"", 6}});
  std::vector<TokenId> found;
  for (const TokenTrie::Entry& entry : trie.entries()) {
    if (entry.token >= 0) found.push_back(entry.token);
  }
  EXPECT_THAT(found, testing::UnorderedElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(trie.longest(), 3);
  ASSERT_EQ(trie.entries().front().byte, 'a');
  EXPECT_EQ(trie.entries()[static_cast<size_t>(trie.entries().front().next)].byte, 'b');
}

TEST(CharSet, KeepsScalarValuesOnly) {
  EXPECT_FALSE(CharSet::all().contains(0xD800));
  EXPECT_TRUE(CharSet::all().contains(0x10FFFF));
  EXPECT_TRUE(CharSet::all().complement().empty());
  const CharSet letters({{'a', 'f'}, {'d', 'k'}, {'m', 'm'}});
  EXPECT_EQ(letters.ranges().size(), 2U);
  EXPECT_FALSE(letters.without(CharSet({{'c', 'z'}})).contains('c'));
  EXPECT_TRUE(letters.complement().contains('l'));
}

}  // namespace
}  // namespace cedar::engine::structured
