#include "model/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"

namespace cedar::model {
namespace {

size_t table_size(size_t entries) { return std::bit_ceil(2 * entries + 1); }

uint64_t mix(uint64_t x) {
  x *= 0x9E3779B97F4A7C15u;
  return x ^ x >> 32;
}

uint64_t hash_pair(TokenId left, TokenId right) {
  return mix(static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
             static_cast<uint32_t>(right));
}

uint64_t hash_bytes(std::string_view bytes) {
  uint64_t h = bytes.size();
  while (!bytes.empty()) {
    uint64_t chunk = 0;
    const size_t n = std::min<size_t>(bytes.size(), sizeof chunk);
    std::memcpy(&chunk, bytes.data(), n);
    h = mix(h ^ chunk);
    bytes.remove_prefix(n);
  }
  return h;
}

/// Orders a max-heap so that its front is the lowest rank, leftmost on a tie.
bool later(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

BpeMerger::BpeMerger(const std::array<TokenId, 256>& byte_tokens, std::vector<MergeRule> rules)
    : byte_tokens_(byte_tokens),
      rules_(std::move(rules)),
      slots_(table_size(rules_.size()), kNoRank) {
  const size_t mask = slots_.size() - 1;
  for (uint32_t r = 0; r < rules_.size(); ++r) {
    size_t slot = hash_pair(rules_[r].left, rules_[r].right) & mask;
    while (slots_[slot] != kNoRank) slot = (slot + 1) & mask;
    slots_[slot] = r;
  }
}

uint32_t BpeMerger::rank(TokenId left, TokenId right) const {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash_pair(left, right) & mask;; slot = (slot + 1) & mask) {
    const uint32_t r = slots_[slot];
    if (r == kNoRank || (rules_[r].left == left && rules_[r].right == right)) return r;
  }
}

void BpeMerger::push_candidate(BpeScratch& scratch, int32_t position) const {
  const auto& left = scratch.symbols[static_cast<size_t>(position)];
  const uint32_t r = rank(left.token, scratch.symbols[static_cast<size_t>(left.next)].token);
  if (r == kNoRank) return;
  scratch.heap.push_back({r, position});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
}

void BpeMerger::merge(std::string_view bytes, BpeScratch& scratch,
                      std::vector<TokenId>& out) const {
  CEDAR_ASSERT(bytes.size() < INT32_MAX, "a piece of " + std::to_string(bytes.size()) + " bytes");
  auto& symbols = scratch.symbols;
  const auto n = static_cast<int32_t>(bytes.size());
  symbols.clear();
  scratch.heap.clear();
  for (int32_t i = 0; i < n; ++i) {
    const auto byte = static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
    symbols.push_back({byte_tokens_[byte], i - 1, i + 1 < n ? i + 1 : -1});
  }
  for (int32_t i = 0; i + 1 < n; ++i) push_candidate(scratch, i);

  constexpr TokenId kGone = -1;  // merged into the symbol on its left
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
    const auto [best, position] = scratch.heap.back();
    scratch.heap.pop_back();
    auto& left = symbols[static_cast<size_t>(position)];
    // A candidate is stale when a later merge changed either of its symbols.
    if (left.token != rules_[best].left || left.next < 0) continue;
    auto& right = symbols[static_cast<size_t>(left.next)];
    if (right.token != rules_[best].right) continue;

    left.token = rules_[best].result;
    left.next = right.next;
    right.token = kGone;
    if (left.next >= 0) {
      symbols[static_cast<size_t>(left.next)].previous = position;
      push_candidate(scratch, position);
    }
    if (left.previous >= 0) push_candidate(scratch, left.previous);
  }
  for (const auto& symbol : symbols) {
    if (symbol.token != kGone) out.push_back(symbol.token);
  }
}

WordTable::WordTable(const std::vector<std::string>& token_bytes, const std::vector<TokenId>& words)
    : token_bytes_(&token_bytes), slots_(table_size(words.size()), -1) {
  const size_t mask = slots_.size() - 1;
  for (const TokenId id : words) {
    size_t slot = hash_bytes(token_bytes[static_cast<size_t>(id)]) & mask;
    while (slots_[slot] >= 0) slot = (slot + 1) & mask;
    slots_[slot] = id;
  }
}

TokenId WordTable::find(std::string_view bytes) const {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash_bytes(bytes) & mask;; slot = (slot + 1) & mask) {
    const TokenId id = slots_[slot];
    if (id < 0 || (*token_bytes_)[static_cast<size_t>(id)] == bytes) return id;
  }
}

}  // namespace cedar::model
