#include "engine/structured/json_rules.h"

#include "engine/structured/number_rules.h"
#include "engine/structured/string_rules.h"
#include "model/json_python.h"

namespace cedar::engine::structured {

void JsonRules::add_blank(Vertex from, Vertex to) {
  if (!blank_) {
    blank_ = graph_.add_rule();
    const Vertex start = graph_.start_of(*blank_), end = graph_.end_of(*blank_);
    graph_.jump(start, end);
    graph_.byte(start, ' ', end);
    const Vertex line = graph_.add_vertex(), indent = graph_.add_vertex();
    const Vertex one_more = graph_.add_vertex();
    graph_.byte(start, '\n', line);
    graph_.count_begin(line, 0, kMaxIndent, indent);
    graph_.count_step(indent, one_more);
    graph_.byte(one_more, ' ', indent);
    graph_.byte(one_more, '\t', indent);
    graph_.count_end(indent, end);
  }
  graph_.call(from, *blank_, to);
}

void JsonRules::add_string(Vertex from, Vertex to) {
  if (!string_) {
    string_ = graph_.add_rule();
    const Vertex open = graph_.add_vertex(), close = graph_.add_vertex();
    graph_.byte(graph_.start_of(*string_), '"', open);
    add_text(graph_, open, Spelling::json, 0, kUnbounded, close);
    graph_.byte(close, '"', graph_.end_of(*string_));
  }
  graph_.call(from, *string_, to);
}

Rule JsonRules::any_value() {
  if (!value_) {
    value_ = graph_.add_rule();
    const Vertex start = graph_.start_of(*value_), end = graph_.end_of(*value_);
    add_all_but_strings(start, end);
    add_string(start, end);
  }
  return *value_;
}

void JsonRules::add_value(Vertex from, Vertex to) { graph_.call(from, any_value(), to); }

void JsonRules::add_object(Vertex from, Vertex to) {
  const Rule value = any_value();
  const Vertex open = graph_.add_vertex(), first = graph_.add_vertex();
  const Vertex name = graph_.add_vertex(), colon = graph_.add_vertex();
  const Vertex before_value = graph_.add_vertex(), at_value = graph_.add_vertex();
  const Vertex after_value = graph_.add_vertex(), comma = graph_.add_vertex();
  const Vertex close = graph_.add_vertex();
  graph_.byte(from, '{', open);
  add_blank(open, first);
  graph_.byte(first, '}', to);
  graph_.jump(first, name);
  add_string(name, colon);
  graph_.byte(colon, ':', before_value);
  add_blank(before_value, at_value);
  graph_.call(at_value, value, after_value);
  graph_.byte(after_value, ',', comma);
  add_blank(comma, name);
  add_blank(after_value, close);
  graph_.byte(close, '}', to);
}

void JsonRules::add_array(Vertex from, Vertex to) {
  const Rule value = any_value();
  const Vertex open = graph_.add_vertex(), first = graph_.add_vertex();
  const Vertex item = graph_.add_vertex(), after_item = graph_.add_vertex();
  const Vertex comma = graph_.add_vertex(), close = graph_.add_vertex();
  graph_.byte(from, '[', open);
  add_blank(open, first);
  graph_.byte(first, ']', to);
  graph_.jump(first, item);
  graph_.call(item, value, after_item);
  graph_.byte(after_item, ',', comma);
  add_blank(comma, item);
  add_blank(after_item, close);
  graph_.byte(close, ']', to);
}

void JsonRules::add_all_but_strings(Vertex from, Vertex to) {
  add_object(from, to);
  add_array(from, to);
  add_number(graph_, from, {}, to);
  graph_.literals(from, {"true", "false", "null"}, to);
}

void JsonRules::add_constant(const Json& value, Vertex from, Vertex to) {
  if (!value.is_structured() || value.empty()) {
    const auto text = model::write_python_json(value);
    return graph_.literal(from, text ? *text : std::string(), to);
  }
  const bool is_object = value.is_object();
  Vertex at = graph_.add_vertex();
  graph_.byte(from, is_object ? '{' : '[', at);
  bool is_first = true;
  for (const auto& [name, item] : value.items()) {
    if (!is_first) {
      const Vertex comma = graph_.add_vertex();
      graph_.byte(at, ',', comma);
      at = comma;
    }
    is_first = false;
    Vertex next = graph_.add_vertex();
    add_blank(at, next);
    if (is_object) {
      const Vertex colon = graph_.add_vertex();
      graph_.literal(next, '"' + json_spelling(name) + "\":", colon);
      next = graph_.add_vertex();
      add_blank(colon, next);
    }
    at = graph_.add_vertex();
    add_constant(item, next, at);
  }
  const Vertex close = graph_.add_vertex();
  add_blank(at, close);
  graph_.byte(close, is_object ? '}' : ']', to);
}

}  // namespace cedar::engine::structured
