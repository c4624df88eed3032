#pragma once
// Sets of Unicode scalar values, and their spelling in UTF-8 as edges of a graph.

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/structured/graph.h"

namespace cedar::engine::structured {

class CharSet {
 public:
  using Range = std::pair<char32_t, char32_t>;  // both ends belong to it

  CharSet() = default;
  explicit CharSet(std::vector<Range> ranges);
  static CharSet all();

  CharSet united(const CharSet& other) const;
  CharSet complement() const;
  CharSet without(const CharSet& other) const;
  bool contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;  // ascending, apart from each other, no surrogates
};

/// Edges that take one character of the set in UTF-8.
void add_utf8(Graph& graph, Vertex from, const CharSet& set, Vertex to);

}  // namespace cedar::engine::structured
