#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "engine/structured/constraints.h"
#include "engine/structured/output_rules.h"
#include "model/tokenizer.h"

namespace cedar::engine::structured {

/// A tokenizer of the repository with constraints over its vocabulary.
struct TestVocabulary {
  std::shared_ptr<const model::Tokenizer> tokenizer;
  std::shared_ptr<Constraints> constraints;
  std::multimap<std::string, TokenId, std::less<>> by_bytes;
  size_t longest = 0;
  std::vector<TokenId> closing;  // tokens that make outputs shorter

  explicit TestVocabulary(const std::string& path) {
    auto loaded = model::Tokenizer::load(std::string(CEDAR_SOURCE_DIR) + "/" + path);
    EXPECT_TRUE(loaded) << loaded.error().message();
    tokenizer = *loaded;
    constraints = Constraints::create(tokenizer, tokenizer->size(), 1);
    for (TokenId id = 0; id < tokenizer->size(); ++id) {
      if (!tokenizer->contains(id) || tokenizer->is_added(id)) continue;
      const std::string bytes(tokenizer->token_bytes(id));
      by_bytes.emplace(bytes, id);
      longest = std::max(longest, bytes.size());
      if (bytes.find_first_not_of("\"]},:") == std::string::npos) closing.push_back(id);
    }
    closing.push_back(1);
  }

  static TestVocabulary& demo() {
    static TestVocabulary vocabulary("config/demo/tokenizer.json");
    return vocabulary;
  }
  static TestVocabulary& release() {
    static TestVocabulary vocabulary("tests/golden/release-tokenizer/tokenizer.json");
    return vocabulary;
  }

  OutputState start(const OutputRules& rules) {
    auto state = constraints->start(to_text(rules));
    EXPECT_TRUE(state) << state.error().message();
    return *state;
  }

  /// Any way to cut the text into tokens.
  std::vector<TokenId> random_tokens(std::string_view text, std::mt19937_64& random) const {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      std::vector<TokenId> candidates;
      for (size_t n = 1; n <= std::min(longest, text.size()); ++n) {
        const auto [begin, end] = by_bytes.equal_range(text.substr(0, n));
        for (auto it = begin; it != end; ++it) candidates.push_back(it->second);
      }
      ids.push_back(candidates[random() % candidates.size()]);
      text.remove_prefix(tokenizer->token_bytes(ids.back()).size());
    }
    return ids;
  }
};

inline OutputRules schema_rules(const std::string& schema, bool closed = false) {
  OutputRules rules;
  rules.answer = AnswerKind::json_schema;
  rules.schema = schema;
  rules.closed_objects = closed;
  return rules;
}

/// Whether every token is in the mask when its turn comes, and the end token after the last.
inline testing::AssertionResult takes(OutputState state, const std::vector<TokenId>& ids,
                                      bool to_the_end = true) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto mask = state.mask();
    if (!mask) return testing::AssertionFailure() << mask.error().message();
    const bool allowed = (*mask)->allows(ids[i]);
    OutputState copy = state;
    if (copy.accept(ids[i]) != allowed) {
      return testing::AssertionFailure() << "mask and automaton differ at token " << i;
    }
    if (!allowed) return testing::AssertionFailure() << "token " << i << " is not allowed";
    state = copy;
  }
  if (!to_the_end) return testing::AssertionSuccess();
  const auto mask = state.mask();
  if (!mask) return testing::AssertionFailure() << mask.error().message();
  if (!(*mask)->allows(1)) return testing::AssertionFailure() << "not complete";
  return testing::AssertionSuccess();
}

/// The document in the tokenizer's own cut, byte for byte, and cut at random.
inline testing::AssertionResult accepts(TestVocabulary& vocabulary, const OutputRules& rules,
                                        const std::string& text) {
  const OutputState start = vocabulary.start(rules);
  if (const auto result = takes(start, vocabulary.tokenizer->encode(text, false)); !result) {
    return result;
  }
  std::mt19937_64 random(7);
  for (int i = 0; i < 3; ++i) {
    if (const auto result = takes(start, vocabulary.random_tokens(text, random)); !result) {
      return result;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace cedar::engine::structured
