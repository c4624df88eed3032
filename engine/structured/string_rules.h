#pragma once
// What may stand inside a string, in the two spellings an output knows: between the quotes of a JSON string,
// and as a call parameter's plain text (spec/chat.md 2.8).

#include <string>
#include <string_view>
#include <vector>

#include "engine/structured/graph.h"
#include "engine/structured/pattern.h"

namespace cedar::engine::structured {

enum class Spelling : uint8_t {
  json,  // escaped
  raw,   // as it is; line breaks and tabs are the only control characters
};

/// Between `min` and `max` characters, any of them. JSON strings may use every escape.
void add_text(Graph& graph, Vertex from, Spelling spelling, int32_t min, int32_t max, Vertex to);

/// The strings of `automaton`. In JSON, characters are written as they are where that is possible, by their
/// short escapes otherwise; other control characters are left out.
void add_text(Graph& graph, Vertex from, Spelling spelling, const CharAutomaton& automaton,
              Vertex to);

/// A member's name that is none of `taken`: no quotes, backslashes or control characters, in raw spelling no
/// angle brackets either.
void add_other_name(Graph& graph, Vertex from, Spelling spelling,
                    const std::vector<std::string>& taken, Vertex to);

/// The text between the quotes that write `value` in JSON.
std::string json_spelling(std::string_view value);

/// The pattern that stands for a `format`; null for a format that is not supported.
const std::string* pattern_of_format(std::string_view format);

}  // namespace cedar::engine::structured
