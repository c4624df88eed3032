#pragma once
// Finding any of a few byte strings in a stream that arrives in pieces (Aho-Corasick).

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cedar::model {

/// Fed byte by byte, so the result cannot depend on how the stream was cut.
class PatternMatcher {
 public:
  /// Empty patterns are ignored.
  explicit PatternMatcher(const std::vector<std::string>& patterns);

  /// Takes the next byte. The index of the pattern that ends with it (the longest, if several do),
  /// or -1.
  int step(char byte);
  /// How many of the last bytes could be the beginning of a pattern: what must be held back.
  size_t depth() const { return nodes_[state_].depth; }
  void reset() { state_ = 0; }

 private:
  struct Node {
    std::vector<std::pair<char, uint32_t>> children;
    uint32_t fallback = 0;  // the longest proper suffix that is a node
    size_t depth = 0;
    int pattern = -1;  // the longest pattern that is a suffix
  };
  uint32_t child(uint32_t node, char byte) const;    // 0, the root, when there is none
  uint32_t advance(uint32_t node, char byte) const;  // through fallbacks

  std::vector<Node> nodes_;
  uint32_t state_ = 0;
};

/// Cuts a text stream at the first stop string. Of several, the one that is complete first counts;
/// of those that end together, the longest.
class StopStrings {
 public:
  explicit StopStrings(const std::vector<std::string>& stops) : stops_(stops), matcher_(stops) {}

  /// The text that no stop string can still claim. Nothing once stopped().
  std::string push(std::string_view text);
  /// The text held back, at the end of the stream or where no stop string may reach across.
  std::string flush();
  bool stopped() const { return matched_ >= 0; }
  /// REQUIRES: stopped().
  const std::string& matched() const { return stops_[static_cast<size_t>(matched_)]; }

 private:
  std::vector<std::string> stops_;
  PatternMatcher matcher_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace cedar::model
