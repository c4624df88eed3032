#pragma once
// Regular expressions of JSON Schema's `pattern` (ECMA-262) as automata over characters: literals, ".",
// classes, groups, alternatives, greedy and lazy quantifiers, and ^ and $ at the ends of an alternative.
// Without anchors a pattern may match anywhere in the string.
// Not regular, or not supported, and refused: back references, look-around, word boundaries, \p, flags.

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "engine/structured/char_set.h"

namespace cedar::engine::structured {

constexpr size_t kMaxPatternBytes = 4096;
constexpr size_t kMaxPatternStates = 8192;

/// Nondeterministic, with jumps. State 0 is the first.
struct CharAutomaton {
  struct Edge {
    int32_t set = -1;  // index into `sets`; -1 takes nothing
    int32_t target = 0;
  };
  std::vector<CharSet> sets;
  std::vector<std::vector<Edge>> edges;
  int32_t accept = 0;
};

/// Accepts the strings in which the pattern matches. Errors: unsupported, saying what and where.
Result<CharAutomaton> parse_pattern(std::string_view pattern);

/// Those of its strings that have between `min` and `max` characters (kUnbounded: no limit).
/// Errors: unsupported when the product has more than kMaxPatternStates * 4 states.
Result<CharAutomaton> with_length(const CharAutomaton& automaton, int32_t min, int32_t max);

}  // namespace cedar::engine::structured
