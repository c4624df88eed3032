#pragma once
// The vocabulary's ordinary tokens by their bytes, so that what tokens have in common is looked at once.
// Added tokens, special or not, are not in it: they stand for no text.

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "model/tokenizer.h"

namespace cedar::engine::structured {

class TokenTrie {
 public:
  explicit TokenTrie(const model::Tokenizer& tokenizer);
  explicit TokenTrie(std::vector<std::pair<std::string_view, TokenId>> tokens);

  /// In preorder: a vertex's descendants follow it directly.
  struct Entry {
    uint8_t byte = 0;    // on the way from its parent
    uint16_t depth = 1;  // bytes from the root
    TokenId token = -1;  // whose bytes end here
    int32_t next = 0;    // index after the last descendant
  };
  const std::vector<Entry>& entries() const { return entries_; }
  int32_t longest() const { return longest_; }

 private:
  void build(std::vector<std::pair<std::string_view, TokenId>> tokens);
  std::vector<Entry> entries_;
  int32_t longest_ = 0;
};

}  // namespace cedar::engine::structured
