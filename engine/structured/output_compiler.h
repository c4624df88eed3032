#pragma once
// Output rules to the graph of a whole output: reasoning, then the answer, tool calls, or either.

#include "core/ids.h"
#include "engine/structured/graph.h"
#include "engine/structured/output_rules.h"

namespace cedar::engine::structured {

/// The vocabulary's tokens for the markers; -1 where it has none and the marker is written out in bytes.
struct MarkerTokens {
  TokenId end_of_reasoning = -1;
  TokenId call_markup = -1;
};

/// A finished graph. Errors: those of check_schema() and check_tool().
Result<Graph> compile_output(const OutputRules& rules, const MarkerTokens& tokens);

}  // namespace cedar::engine::structured
