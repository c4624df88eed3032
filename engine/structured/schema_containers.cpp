// Objects and arrays of schema_compiler.h.

#include <algorithm>

#include "engine/structured/schema_compiler.h"

namespace cedar::engine::structured {

struct SchemaCompiler::Members {
  struct Member {
    std::string name;
    const Json* schema = nullptr;
    std::string pointer;
    bool required = false;
  };
  std::vector<Member> declared;  // in order
  std::vector<std::string> names;
  bool open = false;             // others may follow
  const Json* others = nullptr;  // their schema; null: anything
};

namespace {

class JsonMembers final : public MemberWriter {
 public:
  JsonMembers(Graph& graph, JsonRules& json, SchemaCompiler& compiler)
      : graph_(graph), json_(json), compiler_(compiler) {}

  void add_separator(Vertex from, Vertex to) override {
    const Vertex comma = graph_.add_vertex();
    graph_.byte(from, ',', comma);
    json_.add_blank(comma, to);
  }

  Status add_member(Vertex from, const std::string& name, const Json& schema,
                    const std::string& pointer, Vertex to) override {
    const Vertex colon = graph_.add_vertex(), value = graph_.add_vertex();
    graph_.literal(from, '"' + json_spelling(name) + "\":", colon);
    json_.add_blank(colon, value);
    compiler_.add_call(schema, pointer, value, to);
    return {};
  }

  Status add_other_member(Vertex from, const std::vector<std::string>& taken, const Json* schema,
                          const std::string& pointer, Vertex to) override {
    const Vertex name = graph_.add_vertex(), close = graph_.add_vertex();
    const Vertex colon = graph_.add_vertex(), value = graph_.add_vertex();
    graph_.byte(from, '"', name);
    add_other_name(graph_, name, Spelling::json, taken, close);
    graph_.literal(close, "\":", colon);
    json_.add_blank(colon, value);
    if (schema == nullptr) {
      json_.add_value(value, to);
    } else {
      compiler_.add_call(*schema, pointer, value, to);
    }
    return {};
  }

 private:
  Graph& graph_;
  JsonRules& json_;
  SchemaCompiler& compiler_;
};

}  // namespace

Result<SchemaCompiler::Members> SchemaCompiler::read_members(const Json& schema,
                                                             const std::string& pointer) {
  Members members;
  members.open = !closed_objects_;
  if (const Json* others = find_keyword(schema, "additionalProperties")) {
    members.open = *others != false;
    if (others->is_object()) members.others = others;
    if (!others->is_object() && !others->is_boolean()) {
      return schema_error("additionalProperties", pointer, "must be a schema or a boolean");
    }
  }
  const std::string parent = pointer_to(pointer, "properties");
  if (const Json* properties = find_keyword(schema, "properties")) {
    if (!properties->is_object()) {
      return schema_error("properties", pointer, "must be an object");
    }
    for (const auto& [name, value] : properties->items()) {
      members.declared.push_back({name, &value, pointer_to(parent, name), false});
      members.names.push_back(name);
    }
  }
  static const Json anything = true;
  if (const Json* required = find_keyword(schema, "required")) {
    if (!required->is_array()) return schema_error("required", pointer, "must be a list");
    for (const Json& name : *required) {
      if (!name.is_string()) return schema_error("required", pointer, "must hold texts only");
      const auto& text = name.get_ref<const std::string&>();
      auto found = std::find(members.names.begin(), members.names.end(), text);
      if (found == members.names.end()) {
        if (!members.open) {
          return schema_error("required", pointer, "names a property that may not be there");
        }
        const std::string where = pointer_to(pointer, "additionalProperties");
        members.declared.push_back(
            {text, members.others != nullptr ? members.others : &anything, where, true});
        found = members.names.insert(members.names.end(), text);
      }
      members.declared[static_cast<size_t>(found - members.names.begin())].required = true;
      if (members.names.size() > kMaxProperties) break;
    }
  }
  if (members.names.size() > kMaxProperties) {
    return schema_error("properties", pointer,
                        "must have at most " + std::to_string(kMaxProperties) + " entries");
  }
  for (const std::string& name : members.names) {
    if (ends_the_answer(name)) {
      return schema_error("properties", pointer, "has a name that spells markup of the answer");
    }
  }
  return members;
}

/// Two rows of vertices, one per member that comes next: nothing written yet, and something written.
Status SchemaCompiler::add_members(const Json& schema, const std::string& pointer,
                                   MemberWriter& writer, Vertex from, Vertex without, Vertex with) {
  CEDAR_TRY(const Members members, read_members(schema, pointer));
  Vertex nothing = from;
  Vertex something = graph_.add_vertex();  // out of reach before the first member
  for (const Members::Member& member : members.declared) {
    const Vertex name = graph_.add_vertex();
    const Vertex next_nothing = graph_.add_vertex(), next_something = graph_.add_vertex();
    graph_.jump(nothing, name);
    writer.add_separator(something, name);
    CEDAR_CHECK_OK(
        writer.add_member(name, member.name, *member.schema, member.pointer, next_something));
    if (!member.required) {
      graph_.jump(nothing, next_nothing);
      graph_.jump(something, next_something);
    }
    nothing = next_nothing;
    something = next_something;
  }
  graph_.jump(nothing, without);
  graph_.jump(something, with);
  if (members.open) {
    const Vertex name = graph_.add_vertex();
    graph_.jump(nothing, name);
    writer.add_separator(something, name);
    CEDAR_CHECK_OK(writer.add_other_member(name, members.names, members.others,
                                           pointer_to(pointer, "additionalProperties"), something));
  }
  return {};
}

Status SchemaCompiler::add_object(const Json& schema, const std::string& pointer, Vertex from,
                                  Vertex to) {
  JsonMembers writer(graph_, json_, *this);
  const Vertex open = graph_.add_vertex(), first = graph_.add_vertex();
  const Vertex empty = graph_.add_vertex(), last = graph_.add_vertex();
  const Vertex close = graph_.add_vertex();
  graph_.byte(from, '{', open);
  json_.add_blank(open, first);
  CEDAR_CHECK_OK(add_members(schema, pointer, writer, first, empty, last));
  graph_.byte(empty, '}', to);
  json_.add_blank(last, close);
  graph_.byte(close, '}', to);
  return {};
}

Status SchemaCompiler::add_root_members(MemberWriter& writer, Vertex from, Vertex to) {
  const Json* schema = &root_;
  std::string pointer = "#";
  for (int hops = 0; schema->is_object() && hops < 16; ++hops) {
    const Json* reference = find_keyword(*schema, "$ref");
    if (reference == nullptr || !reference->is_string()) break;
    CEDAR_CHECK_OK(check_alone(*schema, pointer, "$ref", {}));
    pointer = reference->get<std::string>();
    const auto target = resolve_pointer(root_, pointer);
    if (!target) return schema_error("$ref", "#", target.error().context);
    schema = *target;
  }
  if (!schema->is_object()) {
    return make_error(Errc::unsupported, "the schema at " + pointer + " is no object");
  }
  CEDAR_CHECK_OK(check_keywords(*schema, pointer));
  CEDAR_CHECK_OK(
      check_alone(*schema, pointer, "type", {"properties", "required", "additionalProperties"}));
  if (const Json* type = find_keyword(*schema, "type"); type != nullptr && *type != "object") {
    return schema_error("type", pointer, "must be object");
  }
  CEDAR_CHECK_OK(add_members(*schema, pointer, writer, from, to, to));
  return compile_pending();
}

Status SchemaCompiler::add_array(const Json& schema, const std::string& pointer, Vertex from,
                                 Vertex to) {
  CEDAR_TRY(const int32_t min, read_count(schema, pointer, "minItems", 0));
  CEDAR_TRY(const int32_t max, read_count(schema, pointer, "maxItems", kUnbounded));
  if (max != kUnbounded && min > max) return schema_error("minItems", pointer, "is above maxItems");
  const Json* items = find_keyword(schema, "items");
  const Json* prefix = find_keyword(schema, "prefixItems");
  std::string prefix_keyword = "prefixItems";
  if (items != nullptr && items->is_array()) {
    if (prefix != nullptr) return schema_error("items", pointer, "must be a schema or a boolean");
    prefix_keyword = "items";
    prefix = items;
    items = nullptr;
  }
  if (prefix != nullptr && (!prefix->is_array() || prefix->size() > kMaxProperties)) {
    return schema_error(prefix_keyword, pointer,
                        "must be a list of at most " + std::to_string(kMaxProperties));
  }
  const auto add_separator = [this](Vertex at, Vertex next) {
    const Vertex comma = graph_.add_vertex();
    graph_.byte(at, ',', comma);
    json_.add_blank(comma, next);
  };
  const auto add_close = [&, this](Vertex at) {
    const Vertex close = graph_.add_vertex();
    json_.add_blank(at, close);
    graph_.byte(close, ']', to);
  };

  const Vertex open = graph_.add_vertex();
  Vertex at = graph_.add_vertex();
  graph_.byte(from, '[', open);
  json_.add_blank(open, at);
  if (min == 0) graph_.byte(at, ']', to);
  int32_t written = 0;
  const auto prefix_size = prefix == nullptr ? 0 : static_cast<int32_t>(prefix->size());
  const int32_t fixed = max == kUnbounded ? prefix_size : std::min(prefix_size, max);
  const std::string prefix_pointer = pointer_to(pointer, prefix_keyword);
  for (; written < fixed; ++written) {
    Vertex item = at;
    if (written > 0) {
      item = graph_.add_vertex();
      add_separator(at, item);
    }
    at = graph_.add_vertex();
    add_call((*prefix)[static_cast<size_t>(written)],
             pointer_to(prefix_pointer, std::to_string(written)), item, at);
    if (written + 1 >= min) add_close(at);
  }
  if ((items != nullptr && *items == false) || written == max) return {};

  // The first of the rest has no way around it while the minimum is not reached, so that the graph's heights
  // account for it; the others have what it had.
  const Vertex begin = graph_.add_vertex(), first = graph_.add_vertex();
  const Vertex item = graph_.add_vertex(), after = graph_.add_vertex();
  const Vertex more = graph_.add_vertex(), last = graph_.add_vertex();
  graph_.count_begin(at, std::max(0, min - written), max == kUnbounded ? max : max - written,
                     begin);
  graph_.count_step(begin, first);
  if (written > 0) {
    add_separator(first, item);
  } else {
    graph_.jump(first, item);
  }
  if (items == nullptr) {
    json_.add_value(item, after);
  } else {
    add_call(*items, pointer_to(pointer, "items"), item, after);
  }
  graph_.count_step(after, more);
  add_separator(more, item);
  graph_.count_end(after, last);
  add_close(last);
  return {};
}

}  // namespace cedar::engine::structured
