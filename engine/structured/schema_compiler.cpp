#include "engine/structured/schema_compiler.h"

#include <algorithm>

#include "engine/structured/forbidden_text.h"
#include "engine/structured/number_rules.h"
#include "engine/structured/output_markers.h"
#include "model/json_python.h"

namespace cedar::engine::structured {
namespace {

bool is_wanted(Type type, Part part) {
  if (part == Part::all) return true;
  return (type == Type::string) == (part == Part::strings);
}

}  // namespace

bool ends_the_answer(std::string_view text) {
  for (const std::string_view marker : {kEndOfReasoning, kCallMarkup}) {
    if (text.find(marker) != std::string_view::npos) return true;
  }
  return false;
}

Result<Json> read_schema(std::string_view text) {
  if (text.size() > kMaxSchemaBytes) {
    return make_error(Errc::unsupported,
                      "has more than " + std::to_string(kMaxSchemaBytes) + " bytes");
  }
  return model::read_python_json(text);
}

Status SchemaCompiler::add_root(Vertex from, Vertex to) {
  add_call(root_, "#", from, to);
  return compile_pending();
}

void SchemaCompiler::add_call(const Json& schema, const std::string& pointer, Vertex from,
                              Vertex to) {
  const auto [found, is_new] = rules_.try_emplace(&schema, 0);
  if (is_new) {
    found->second = graph_.add_rule();
    pending_.push_back({&schema, pointer, found->second});
  }
  graph_.call(from, found->second, to);
}

Status SchemaCompiler::compile_pending() {
  while (!pending_.empty()) {
    const Job job = std::move(pending_.front());
    pending_.pop_front();
    if (rules_.size() > kMaxSchemas) {
      return make_error(Errc::unsupported,
                        "has more than " + std::to_string(kMaxSchemas) + " schemas");
    }
    if (graph_.too_large()) return graph_.finish();
    CEDAR_CHECK_OK(add_value(*job.schema, job.pointer, Part::all, graph_.start_of(job.rule),
                             graph_.end_of(job.rule)));
  }
  return {};
}

Status SchemaCompiler::add_value(const Json& schema, const std::string& pointer, Part part,
                                 Vertex from, Vertex to) {
  in_place_.clear();
  return add_schema(schema, pointer, part, from, to);
}

Status SchemaCompiler::add_schema(const Json& schema, const std::string& pointer, Part part,
                                  Vertex from, Vertex to) {
  // A second time adds nothing, and without end if it refers to itself.
  if (!in_place_.insert(&schema).second) return {};
  if (schema.is_boolean()) {
    if (schema == true) add_anything(part, from, to);
    return {};
  }
  if (!schema.is_object()) {
    return make_error(Errc::unsupported,
                      "the schema at " + pointer + " is no object and no boolean");
  }
  CEDAR_CHECK_OK(check_keywords(schema, pointer));
  const Json* nullable = find_keyword(schema, "nullable");
  if (nullable != nullptr && *nullable == true && part != Part::strings) {
    graph_.literal(from, "null", to);
  }
  if (find_keyword(schema, "$ref") != nullptr) {
    return add_reference(schema, pointer, part, from, to);
  }
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    if (find_keyword(schema, keyword) != nullptr) {
      return add_alternatives(schema, pointer, keyword, part, from, to);
    }
  }
  if (find_keyword(schema, "enum") != nullptr || find_keyword(schema, "const") != nullptr) {
    return add_constants(schema, pointer, part, from, to);
  }
  return add_types(schema, pointer, part, from, to);
}

Status SchemaCompiler::add_reference(const Json& schema, const std::string& pointer, Part part,
                                     Vertex from, Vertex to) {
  CEDAR_CHECK_OK(check_alone(schema, pointer, "$ref", {}));
  const Json* reference = find_keyword(schema, "$ref");
  if (!reference->is_string()) return schema_error("$ref", pointer, "must be a text");
  const auto& text = reference->get_ref<const std::string&>();
  const auto target = resolve_pointer(root_, text);
  if (!target) return schema_error("$ref", pointer, target.error().context);
  if (part != Part::all) return add_schema(**target, text, part, from, to);
  add_call(**target, text, from, to);
  return {};
}

Status SchemaCompiler::add_alternatives(const Json& schema, const std::string& pointer,
                                        const char* keyword, Part part, Vertex from, Vertex to) {
  CEDAR_CHECK_OK(check_alone(schema, pointer, keyword, {}));
  const Json& list = *find_keyword(schema, keyword);
  if (!list.is_array() || list.empty()) {
    return schema_error(keyword, pointer, "must be a list that is not empty");
  }
  if (std::string_view(keyword) == "allOf" && list.size() > 1) {
    return schema_error(keyword, pointer, "is supported with one entry only");
  }
  const std::string parent = pointer_to(pointer, keyword);
  for (size_t i = 0; i < list.size(); ++i) {
    CEDAR_CHECK_OK(add_schema(list[i], pointer_to(parent, std::to_string(i)), part, from, to));
  }
  return {};
}

Status SchemaCompiler::add_constants(const Json& schema, const std::string& pointer, Part part,
                                     Vertex from, Vertex to) {
  const bool is_enum = find_keyword(schema, "enum") != nullptr;
  const char* keyword = is_enum ? "enum" : "const";
  CEDAR_CHECK_OK(check_alone(schema, pointer, keyword, {"type"}));
  const Json& given = *find_keyword(schema, keyword);
  if (is_enum && (!given.is_array() || given.empty())) {
    return schema_error(keyword, pointer, "must be a list that is not empty");
  }
  if (is_enum && given.size() > kMaxConstants) {
    return schema_error(keyword, pointer,
                        "must have at most " + std::to_string(kMaxConstants) + " values");
  }
  CEDAR_TRY(const std::vector<Type> types, read_types(schema, pointer));
  const auto is_typed = [&](const Json& value) {
    return std::any_of(types.begin(), types.end(),
                       [&](Type type) { return is_of_type(value, type); });
  };
  std::vector<std::string> texts;
  const auto add = [&](const Json& value) -> Status {
    if (!is_typed(value) || !(part == Part::all || value.is_string() == (part == Part::strings))) {
      return {};
    }
    auto text = model::write_python_json(value);
    if (!text) return schema_error(keyword, pointer, text.error().context);
    if (ends_the_answer(*text))
      return schema_error(keyword, pointer, "spells markup of the answer");
    if (value.is_structured()) {
      json_.add_constant(value, from, to);
    } else {
      texts.push_back(part == Part::strings ? value.get<std::string>() : std::move(*text));
    }
    return {};
  };
  if (is_enum) {
    for (const Json& value : given) CEDAR_CHECK_OK(add(value));
  } else {
    CEDAR_CHECK_OK(add(given));
  }
  graph_.literals(from, texts, to);
  return {};
}

void SchemaCompiler::add_anything(Part part, Vertex from, Vertex to) {
  switch (part) {
    case Part::all: json_.add_value(from, to); break;
    case Part::strings: add_text(graph_, from, Spelling::raw, 0, kUnbounded, to); break;
    case Part::all_but_strings: json_.add_all_but_strings(from, to); break;
  }
}

Status SchemaCompiler::add_types(const Json& schema, const std::string& pointer, Part part,
                                 Vertex from, Vertex to) {
  CEDAR_TRY(const std::vector<Type> types, read_types(schema, pointer));
  for (const Type type : types) {
    if (!is_wanted(type, part)) continue;
    switch (type) {
      case Type::object: CEDAR_CHECK_OK(add_object(schema, pointer, from, to)); break;
      case Type::array: CEDAR_CHECK_OK(add_array(schema, pointer, from, to)); break;
      case Type::string:
        CEDAR_CHECK_OK(add_string(
            schema, pointer, part == Part::strings ? Spelling::raw : Spelling::json, from, to));
        break;
      case Type::integer: CEDAR_CHECK_OK(add_numeric(schema, pointer, true, from, to)); break;
      case Type::number: CEDAR_CHECK_OK(add_numeric(schema, pointer, false, from, to)); break;
      case Type::boolean: graph_.literals(from, {"true", "false"}, to); break;
      case Type::null: graph_.literal(from, "null", to); break;
    }
  }
  return {};
}

Status SchemaCompiler::add_string(const Json& schema, const std::string& pointer, Spelling spelling,
                                  Vertex from, Vertex to) {
  CEDAR_TRY(const int32_t min, read_count(schema, pointer, "minLength", 0));
  CEDAR_TRY(const int32_t max, read_count(schema, pointer, "maxLength", kUnbounded));
  if (max != kUnbounded && min > max) {
    return schema_error("minLength", pointer, "is above maxLength");
  }
  const Json* pattern = find_keyword(schema, "pattern");
  const Json* format = find_keyword(schema, "format");
  const char* keyword = pattern != nullptr ? "pattern" : "format";
  if (pattern != nullptr && format != nullptr) {
    return schema_error("format", pointer, "is not supported beside pattern");
  }
  std::string expression;
  if (const Json* given = pattern != nullptr ? pattern : format) {
    if (!given->is_string()) return schema_error(keyword, pointer, "must be a text");
    expression = given->get<std::string>();
  }
  if (format != nullptr) {
    const std::string* known = pattern_of_format(expression);
    if (known == nullptr) {
      return schema_error("format", pointer,
                          "must be date, time, date-time, duration, uuid, email, hostname, ipv4, "
                          "ipv6 or uri");
    }
    expression = *known;
  }

  Vertex begin = from, end = to;
  if (spelling == Spelling::json) {
    begin = graph_.add_vertex();
    end = graph_.add_vertex();
    graph_.byte(from, '"', begin);
    graph_.byte(end, '"', to);
  }
  if (pattern == nullptr && format == nullptr) {
    add_text(graph_, begin, spelling, min, max, end);
    return {};
  }
  auto automaton = parse_pattern(expression);
  if (automaton && (min > 0 || max != kUnbounded)) automaton = with_length(*automaton, min, max);
  if (!automaton) return schema_error(keyword, pointer, automaton.error().context);
  add_text(graph_, begin, spelling, *automaton, end);
  return {};
}

Status SchemaCompiler::add_numeric(const Json& schema, const std::string& pointer, bool whole,
                                   Vertex from, Vertex to) {
  NumberBounds bounds;
  const auto read = [&](const char* keyword, bool is_low, bool is_open) -> Status {
    const Json* value = find_keyword(schema, keyword);
    if (value == nullptr) return {};
    const auto number = read_decimal(*value);
    if (!number) return schema_error(keyword, pointer, number.error().context);
    auto& bound = is_low ? bounds.low : bounds.high;
    bool& open = is_low ? bounds.low_open : bounds.high_open;
    const int order = bound ? compare(*number, *bound) * (is_low ? 1 : -1) : 1;
    if (order < 0) return {};  // the other one is narrower
    open = is_open || (order == 0 && open);
    bound = *number;
    return {};
  };
  CEDAR_CHECK_OK(read("minimum", true, false));
  CEDAR_CHECK_OK(read("exclusiveMinimum", true, true));
  CEDAR_CHECK_OK(read("maximum", false, false));
  CEDAR_CHECK_OK(read("exclusiveMaximum", false, true));
  if (bounds.low && bounds.high && compare(*bounds.low, *bounds.high) > 0) {
    return schema_error("minimum", pointer, "is above maximum");
  }
  if (whole) {
    add_integer(graph_, from, bounds, to);
  } else {
    add_number(graph_, from, bounds, to);
  }
  return {};
}

}  // namespace cedar::engine::structured
