#include "engine/structured/char_set.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "model/utf8.h"

namespace cedar::engine::structured {
namespace {

constexpr char32_t kLast = 0x10FFFF;
constexpr char32_t kSurrogates = 0xD800, kAfterSurrogates = 0xE000;

/// Cuts [low, high] so that in each part every byte position has a range of its own.
void split(char32_t low, char32_t high, std::vector<CharSet::Range>& parts) {
  for (const char32_t last : {U'\x7F', U'\x7FF', U'\xFFFF'}) {
    if (low <= last && last < high) {
      split(low, last, parts);
      return split(last + 1, high, parts);
    }
  }
  for (int bits = 6; bits <= 18 && high > 0x7F; bits += 6) {
    const char32_t mask = (char32_t{1} << bits) - 1;
    if ((low & ~mask) == (high & ~mask)) break;
    if ((low & mask) != 0) {
      split(low, low | mask, parts);
      return split((low | mask) + 1, high, parts);
    }
    if ((high & mask) != mask) {
      split(low, (high & ~mask) - 1, parts);
      return split(high & ~mask, high, parts);
    }
  }
  parts.emplace_back(low, high);
}

}  // namespace

CharSet::CharSet(std::vector<Range> ranges) {
  std::vector<Range> legal;
  for (const auto& [low, high] : ranges) {
    if (low > high || low > kLast) continue;
    const char32_t end = std::min(high, kLast);
    if (low < kSurrogates) legal.emplace_back(low, std::min<char32_t>(end, kSurrogates - 1));
    if (end >= kAfterSurrogates) legal.emplace_back(std::max(low, kAfterSurrogates), end);
  }
  std::sort(legal.begin(), legal.end());
  for (const Range& range : legal) {
    if (range.first > range.second) continue;
    if (!ranges_.empty() && range.first <= ranges_.back().second + 1) {
      ranges_.back().second = std::max(ranges_.back().second, range.second);
    } else {
      ranges_.push_back(range);
    }
  }
}

CharSet CharSet::all() { return CharSet({{0, kLast}}); }

CharSet CharSet::united(const CharSet& other) const {
  std::vector<Range> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CharSet(std::move(both));
}

CharSet CharSet::complement() const {
  std::vector<Range> gaps;
  char32_t next = 0;
  for (const auto& [low, high] : ranges_) {
    if (low > next) gaps.emplace_back(next, low - 1);
    next = high + 1;
  }
  gaps.emplace_back(next, kLast);
  return CharSet(std::move(gaps));
}

CharSet CharSet::without(const CharSet& other) const {
  return complement().united(other).complement();
}

bool CharSet::contains(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [c](const Range& r) { return r.first <= c && c <= r.second; });
}

void add_utf8(Graph& graph, Vertex from, const CharSet& set, Vertex to) {
  // Parts with the same last bytes share the vertices before them.
  std::map<std::string, Vertex> tails;
  for (const auto& [low, high] : set.ranges()) {
    std::vector<CharSet::Range> parts;
    split(low, high, parts);
    for (const auto& [first, last] : parts) {
      std::string a, b;
      model::append_utf8(a, first);
      model::append_utf8(b, last);
      Vertex target = to;
      std::string tail;
      for (size_t i = a.size() - 1; i > 0; --i) {
        tail += {a[i], b[i]};
        const auto [found, is_new] = tails.try_emplace(tail, 0);
        if (is_new) {
          found->second = graph.add_vertex();
          graph.bytes(found->second, static_cast<uint8_t>(a[i]), static_cast<uint8_t>(b[i]),
                      target);
        }
        target = found->second;
      }
      graph.bytes(from, static_cast<uint8_t>(a[0]), static_cast<uint8_t>(b[0]), target);
    }
  }
}

}  // namespace cedar::engine::structured
