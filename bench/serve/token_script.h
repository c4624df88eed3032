#pragma once
// What the synthetic source writes into each stream, and whether a client got exactly that: token `index` of a
// stream is a word chosen by (stream, index), so both processes know it without telling each other.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "model/tokenizer.h"

namespace cedar::bench {

class TokenScript {
 public:
  /// Errors: invalid_config (too few plain words in the vocabulary).
  static Result<TokenScript> create(const model::Tokenizer& tokenizer);

  TokenId id(uint64_t stream, int64_t index) const { return ids_[word(stream, index)]; }
  std::string_view text(uint64_t stream, int64_t index) const {
    return texts_[word(stream, index)];
  }

 private:
  size_t word(uint64_t stream, int64_t index) const;

  std::vector<TokenId> ids_;
  std::vector<std::string> texts_;
};

/// Follows the text of one stream.
class StreamCheck {
 public:
  struct Counts {
    int64_t lost = 0;
    int64_t repeated = 0;
    int64_t out_of_order = 0;  // text that belongs to no token near the expected one
  };

  /// Takes the next piece of text. Returns how many tokens it brought, the last of them being received() - 1.
  int64_t take(const TokenScript& script, uint64_t stream, std::string_view text);
  /// Tokens 0 ... received() - 1 are through, whether whole or counted as lost.
  int64_t received() const { return next_; }
  const Counts& counts() const { return counts_; }
  /// The stream has ended after `total` tokens.
  void finish(int64_t total) {
    if (next_ < total) counts_.lost += total - next_;
  }

 private:
  /// The text does not go on with token next_: goes on where it fits, or drops a word.
  void find_place(const TokenScript& script, uint64_t stream, std::string_view& text);

  int64_t next_ = 0;
  Counts counts_;
};

}  // namespace cedar::bench
