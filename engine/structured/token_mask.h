#pragma once
// One bit per token id: what may come next.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/ids.h"

namespace cedar::engine::structured {

class TokenMask {
 public:
  explicit TokenMask(int64_t vocab_size)
      : words_(static_cast<size_t>((vocab_size + 63) / 64)), size_(vocab_size) {}

  void allow(TokenId id) { word(id) |= bit(id); }
  bool allows(TokenId id) const {
    return id >= 0 && id < size_ && (words_[static_cast<size_t>(id) / 64] & bit(id)) != 0;
  }
  int64_t size() const { return size_; }
  int64_t count() const {
    int64_t sum = 0;
    for (const uint64_t w : words_) sum += std::popcount(w);
    return sum;
  }
  bool empty() const {
    for (const uint64_t w : words_) {
      if (w != 0) return false;
    }
    return true;
  }
  /// Bit id % 64 of word id / 64.
  std::span<const uint64_t> words() const { return words_; }
  size_t bytes() const { return words_.size() * sizeof(uint64_t); }

  /// Minus infinity for every id that is not allowed. `logits` may be longer than the mask.
  void apply(std::span<float> logits) const {
    constexpr float kNever = -std::numeric_limits<float>::infinity();
    for (size_t i = 0; i < words_.size(); ++i) {
      if (words_[i] == ~uint64_t{0}) continue;
      const size_t end = std::min(logits.size(), i * 64 + 64);
      for (size_t id = i * 64; id < end; ++id) {
        if ((words_[i] >> (id % 64) & 1) == 0) logits[id] = kNever;
      }
    }
    for (size_t id = words_.size() * 64; id < logits.size(); ++id) logits[id] = kNever;
  }

  friend bool operator==(const TokenMask&, const TokenMask&) = default;

 private:
  static uint64_t bit(TokenId id) { return uint64_t{1} << (static_cast<size_t>(id) % 64); }
  uint64_t& word(TokenId id) { return words_[static_cast<size_t>(id) / 64]; }

  std::vector<uint64_t> words_;
  int64_t size_;
};

}  // namespace cedar::engine::structured
