#include "engine/structured/token_trie.h"

#include <algorithm>

namespace cedar::engine::structured {
namespace {

constexpr size_t kLongestToken = 4096;  // longer ones are left out; no vocabulary has them

size_t common_prefix(std::string_view a, std::string_view b) {
  const size_t end = std::min(a.size(), b.size());
  size_t n = 0;
  while (n < end && a[n] == b[n]) ++n;
  return n;
}

}  // namespace

TokenTrie::TokenTrie(const model::Tokenizer& tokenizer) {
  std::vector<std::pair<std::string_view, TokenId>> tokens;
  for (TokenId id = 0; id < tokenizer.size(); ++id) {
    if (tokenizer.contains(id) && !tokenizer.is_added(id)) {
      tokens.emplace_back(tokenizer.token_bytes(id), id);
    }
  }
  build(std::move(tokens));
}

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, TokenId>> tokens) {
  build(std::move(tokens));
}

void TokenTrie::build(std::vector<std::pair<std::string_view, TokenId>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  std::vector<size_t> open;  // entries on the way to the last token
  std::string_view last;
  for (const auto& [bytes, id] : tokens) {
    if (bytes.empty() || bytes.size() > kLongestToken) continue;
    longest_ = std::max(longest_, static_cast<int32_t>(bytes.size()));
    // A token with the bytes of another gets a last entry of its own.
    const size_t shared = std::min(common_prefix(last, bytes), bytes.size() - 1);
    while (open.size() > shared) {
      entries_[open.back()].next = static_cast<int32_t>(entries_.size());
      open.pop_back();
    }
    for (size_t i = shared; i < bytes.size(); ++i) {
      open.push_back(entries_.size());
      entries_.push_back({static_cast<uint8_t>(bytes[i]), static_cast<uint16_t>(i + 1), -1, 0});
    }
    entries_.back().token = id;
    last = bytes;
  }
  for (const size_t entry : open) entries_[entry].next = static_cast<int32_t>(entries_.size());
}

}  // namespace cedar::engine::structured
