#pragma once
// Finding added tokens in text (spec/chat.md 1.2 step 2).

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ids.h"

namespace cedar::model {

/// A trie of spellings. Immutable after the last `add`.
class AddedTokenTrie {
 public:
  struct Match {
    size_t begin = 0, end = 0;
    TokenId id = 0;
  };

  /// REQUIRES: `spelling` is not empty. A second token with the same spelling replaces the first.
  void add(std::string_view spelling, TokenId id);
  /// The leftmost match at or after `from`, the longest one there.
  std::optional<Match> find(std::string_view text, size_t from) const;

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;
    TokenId id = -1;  // of the token that ends here
  };
  uint32_t child(uint32_t node, char byte) const;  // 0, the root, when there is none

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> starts_{};  // bytes that begin a spelling
};

}  // namespace cedar::model
