#include "bench/serve/token_script.h"

#include <algorithm>
#include <cctype>

namespace cedar::bench {
namespace {

constexpr size_t kWords = 512;
constexpr int64_t kSearch = 64;  // how far from the expected token a wrong one is looked for

/// " word": short letters behind one blank, which no stop string, markup or character boundary holds back.
bool is_plain_word(std::string_view bytes) {
  return bytes.size() >= 3 && bytes.size() <= 10 && bytes[0] == ' ' &&
         std::all_of(bytes.begin() + 1, bytes.end(),
                     [](unsigned char c) { return std::islower(c) != 0; });
}

}  // namespace

Result<TokenScript> TokenScript::create(const model::Tokenizer& tokenizer) {
  TokenScript script;
  for (TokenId id = 0; id < tokenizer.size() && script.ids_.size() < kWords; ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (tokenizer.is_added(id) || !is_plain_word(bytes)) continue;
    script.ids_.push_back(id);
    script.texts_.emplace_back(bytes);
  }
  if (script.ids_.size() < kWords) {
    return make_error(Errc::invalid_config, "tokenizer: fewer than " + std::to_string(kWords) +
                                                " plain words in the vocabulary");
  }
  return script;
}

size_t TokenScript::word(uint64_t stream, int64_t index) const {
  uint64_t x = stream * 0x9E3779B97F4A7C15U + static_cast<uint64_t>(index);
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9U;
  return (x >> 40) % ids_.size();
}

int64_t StreamCheck::take(const TokenScript& script, uint64_t stream, std::string_view text) {
  int64_t tokens = 0;
  while (!text.empty()) {
    const std::string_view expected = script.text(stream, next_);
    // A word that another one begins with: the blank of the next one, or the end, must follow.
    const bool whole = text.size() == expected.size() ||
                       (text.size() > expected.size() && text[expected.size()] == ' ');
    if (whole && text.substr(0, expected.size()) == expected) {
      text.remove_prefix(expected.size());
      ++next_;
      ++tokens;
    } else {
      find_place(script, stream, text);
    }
  }
  return tokens;
}

void StreamCheck::find_place(const TokenScript& script, uint64_t stream, std::string_view& text) {
  const size_t end = std::min(text.find(' ', 1), text.size());
  const std::string_view word = text.substr(0, end);
  for (int64_t ahead = 1; ahead <= kSearch; ++ahead) {
    if (script.text(stream, next_ + ahead) != word) continue;
    counts_.lost += ahead;
    next_ += ahead;
    return;
  }
  text.remove_prefix(end);
  for (int64_t back = 1; back <= std::min(kSearch, next_); ++back) {
    if (script.text(stream, next_ - back) != word) continue;
    ++counts_.repeated;
    return;
  }
  ++counts_.out_of_order;
}

}  // namespace cedar::bench
