#pragma once
// Where in a graph an output stands: a set of threads, each a stack of frames. A value: copied freely, equal
// when nothing tells two of them apart, so that drafted tokens can be tried on a copy.

#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "engine/structured/forbidden_text.h"
#include "engine/structured/graph.h"

namespace cedar::engine::structured {

/// A frozen graph (its rule 0 is the whole output) and the texts that must not appear.
struct Automaton {
  Graph graph;
  ForbiddenText forbidden;
};

struct Frame {
  Vertex vertex = 0;
  int32_t need = 0;  // counter steps until the minimum
  int32_t left = 0;  // until the maximum; kUnbounded
  friend auto operator<=>(const Frame&, const Frame&) = default;
};

using Thread = std::vector<Frame>;  // innermost last

/// More threads than this are dropped, the deepest first to be found: the output then has fewer ways to go
/// on, all of them right.
constexpr size_t kMaxThreads = 256;

struct State {
  std::vector<Thread> threads;  // sorted; each waits for a byte or a token
  int16_t forbidden = 0;        // state of Automaton::forbidden
  bool complete = false;        // the output may end here
  /// Nothing can follow and the output is not complete.
  bool dead() const { return threads.empty() && !complete; }
  friend bool operator==(const State&, const State&) = default;
};

struct StateHash {
  size_t operator()(const State& state) const;
};

State start_state(const Automaton& automaton);
/// A byte that nothing takes gives a dead state.
State after_byte(const Automaton& automaton, const State& state, uint8_t byte);
/// An added token.
State after_token(const Automaton& automaton, const State& state, TokenId id);

/// The same state with counters lowered to `limit` where they are higher. Texts of fewer than `limit` bytes
/// cannot tell the two apart.
State with_counters_up_to(const State& state, int32_t limit);

/// The added tokens that `state` can take.
std::vector<TokenId> takeable_tokens(const Automaton& automaton, const State& state);

}  // namespace cedar::engine::structured
