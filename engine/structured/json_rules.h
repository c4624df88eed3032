#pragma once
// Rules for JSON of any shape, made once per graph when first asked for, and the blanks between its parts.

#include <optional>

#include <nlohmann/json.hpp>

#include "engine/structured/graph.h"

namespace cedar::engine::structured {

using Json = nlohmann::ordered_json;

/// Blanks after a line break: enough to indent, too few to write nothing forever.
constexpr int32_t kMaxIndent = 64;

class JsonRules {
 public:
  explicit JsonRules(Graph& graph) : graph_(graph) {}

  /// Between the parts of a value: nothing, one space, or a line break and up to kMaxIndent spaces or tabs.
  void add_blank(Vertex from, Vertex to);
  /// A string with its quotes.
  void add_string(Vertex from, Vertex to);
  void add_object(Vertex from, Vertex to);
  void add_array(Vertex from, Vertex to);
  /// Objects, arrays, numbers, true, false and null: everything but strings.
  void add_all_but_strings(Vertex from, Vertex to);
  void add_value(Vertex from, Vertex to);
  /// This value and no other; blanks are free.
  void add_constant(const Json& value, Vertex from, Vertex to);

 private:
  Rule any_value();
  Graph& graph_;
  std::optional<Rule> blank_, string_, value_;
};

}  // namespace cedar::engine::structured
