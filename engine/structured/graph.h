#pragma once
// The automaton that all constraints compile to: a pushdown automaton over bytes. Rules are its subroutines,
// one per schema; calling one pushes a frame, so nesting needs no copies of the graph and its depth has one
// explicit bound. A frame carries one counter for "between min and max times".
//
// Some characters of the output are tokens of their own (end of reasoning, tool markup): a token edge takes
// such a token and no other spelling of it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/result.h"

namespace cedar::engine::structured {

using Vertex = int32_t;
using Rule = int32_t;

constexpr int32_t kUnbounded = -1;
/// Frames of one thread of the automaton, the first one included: nesting of values, roughly.
constexpr int32_t kMaxFrames = 64;
constexpr int32_t kMaxVertices = 100'000;
constexpr int32_t kMaxEdges = 400'000;

enum class EdgeKind : uint8_t {
  bytes,        // takes one byte in [low, high]
  token,        // takes the added token `a`
  jump,         // takes nothing
  call,         // runs rule `a`, then goes on at the target
  count_begin,  // the frame's counter becomes: at least `a`, at most `b` steps
  count_step,   // one more; not beyond the maximum
  count_end,    // not before the minimum
};

struct Edge {
  EdgeKind kind = EdgeKind::jump;
  uint8_t low = 0, high = 0;
  Vertex target = 0;
  int32_t a = 0, b = 0;
};

/// Built by the compilers, then frozen by finish(). Too large a graph is remembered and reported there, so
/// that builders need not check every step.
class Graph {
 public:
  Vertex add_vertex();
  /// A rule begins at start_of() and is over at end_of().
  Rule add_rule();
  Vertex start_of(Rule rule) const { return starts_[static_cast<size_t>(rule)]; }
  Vertex end_of(Rule rule) const { return ends_[static_cast<size_t>(rule)]; }

  void bytes(Vertex from, uint8_t low, uint8_t high, Vertex to);
  void byte(Vertex from, char value, Vertex to);
  void literal(Vertex from, std::string_view text, Vertex to);
  /// Any of the texts; common beginnings share their vertices.
  void literals(Vertex from, const std::vector<std::string>& texts, Vertex to);
  void token(Vertex from, TokenId id, Vertex to);
  void jump(Vertex from, Vertex to);
  void call(Vertex from, Rule rule, Vertex to);
  void count_begin(Vertex from, int32_t min, int32_t max, Vertex to);
  void count_step(Vertex from, Vertex to);
  void count_end(Vertex from, Vertex to);

  bool too_large() const { return too_large_; }

  /// Removes what cannot end, and knows from then on how many frames each vertex still needs. Call once.
  /// Errors: unsupported (too large; a rule that calls itself before it takes a byte; the first rule has no
  /// end within kMaxFrames).
  Status finish();

  // After finish().
  const std::vector<Edge>& edges(Vertex vertex) const {
    return edges_[static_cast<size_t>(vertex)];
  }
  bool is_end(Vertex vertex) const { return is_end_[static_cast<size_t>(vertex)] != 0; }
  /// Frames above its own that the shortest way to the rule's end needs.
  int32_t height(Vertex vertex) const { return heights_[static_cast<size_t>(vertex)]; }
  int32_t vertex_count() const { return static_cast<int32_t>(edges_.size()); }

 private:
  void add(Vertex from, const Edge& edge);
  void compute_heights();
  void prune();
  bool calls_itself_at_once() const;

  std::vector<std::vector<Edge>> edges_;
  std::vector<uint8_t> is_end_;
  std::vector<Vertex> starts_, ends_;
  std::vector<int32_t> heights_;
  int32_t edge_count_ = 0;
  bool too_large_ = false;
};

}  // namespace cedar::engine::structured
