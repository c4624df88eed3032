#pragma once
// Byte-pair merging over byte symbols (spec/chat.md 1.2 step 4): repeatedly the pair with the
// lowest rank, leftmost first.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"

namespace cedar::model {

/// One rule: `left` directly followed by `right` becomes `result`. Its rank is its place in the
/// list.
struct MergeRule {
  TokenId left = 0, right = 0, result = 0;
};

/// Working memory of one encode call.
struct BpeScratch {
  struct Symbol {
    TokenId token;
    int32_t previous, next;  // -1 at the ends
  };
  struct Candidate {
    uint32_t rank;
    int32_t position;  // of the left symbol
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

/// Immutable; safe to share.
class BpeMerger {
 public:
  BpeMerger() = default;
  /// `byte_tokens[b]` is the token of the single byte b. Each (left, right) occurs in one rule at
  /// most.
  BpeMerger(const std::array<TokenId, 256>& byte_tokens, std::vector<MergeRule> rules);

  /// Appends the tokens of one piece. O(n log n) in the piece's bytes.
  void merge(std::string_view bytes, BpeScratch& scratch, std::vector<TokenId>& out) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  uint32_t rank(TokenId left, TokenId right) const;
  void push_candidate(BpeScratch& scratch, int32_t position) const;

  std::array<TokenId, 256> byte_tokens_{};
  std::vector<MergeRule> rules_;  // by rank
  // Open addressing, rank or kNoRank: a power of two, at most half full.
  std::vector<uint32_t> slots_;
};

/// Pieces that are one token, by their bytes, so that most words need no merging at all.
class WordTable {
 public:
  WordTable() = default;
  /// `token_bytes[id]` must outlive the table. `words` are the ids to be found.
  WordTable(const std::vector<std::string>& token_bytes, const std::vector<TokenId>& words);

  /// -1 when no word has these bytes.
  TokenId find(std::string_view bytes) const;

 private:
  const std::vector<std::string>* token_bytes_ = nullptr;
  std::vector<TokenId> slots_;  // open addressing: id or -1; a power of two, at most half full
};

}  // namespace cedar::model
