#include "engine/structured/schema_keywords.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>

namespace cedar::engine::structured {
namespace {

constexpr std::array<std::string_view, kTypeCount> kTypeNames{
    "object", "array", "string", "integer", "number", "boolean", "null"};

constexpr std::array<std::string_view, 22> kSupported{"type",
                                                      "properties",
                                                      "required",
                                                      "additionalProperties",
                                                      "items",
                                                      "prefixItems",
                                                      "minItems",
                                                      "maxItems",
                                                      "minLength",
                                                      "maxLength",
                                                      "pattern",
                                                      "format",
                                                      "minimum",
                                                      "maximum",
                                                      "exclusiveMinimum",
                                                      "exclusiveMaximum",
                                                      "enum",
                                                      "const",
                                                      "anyOf",
                                                      "oneOf",
                                                      "allOf",
                                                      "$ref"};

constexpr std::array<std::string_view, 23> kUnsupported{"not",
                                                        "if",
                                                        "then",
                                                        "else",
                                                        "patternProperties",
                                                        "propertyNames",
                                                        "unevaluatedProperties",
                                                        "unevaluatedItems",
                                                        "minProperties",
                                                        "maxProperties",
                                                        "dependencies",
                                                        "dependentRequired",
                                                        "dependentSchemas",
                                                        "contains",
                                                        "minContains",
                                                        "maxContains",
                                                        "additionalItems",
                                                        "multipleOf",
                                                        "divisibleBy",
                                                        "$dynamicRef",
                                                        "$recursiveRef",
                                                        "extends",
                                                        "disallow"};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Which type a keyword is about; kTypeCount for the others.
size_t subject_of(std::string_view keyword) {
  if (is_one_of(keyword, {"properties", "required", "additionalProperties"})) return 0;
  if (is_one_of(keyword, {"items", "prefixItems", "minItems", "maxItems"})) return 1;
  if (is_one_of(keyword, {"minLength", "maxLength", "pattern", "format"})) return 2;
  if (is_one_of(keyword, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})) return 4;
  return kTypeCount;
}

Result<Type> type_of_name(const Json& name, const std::string& pointer) {
  if (name.is_string()) {
    const auto found =
        std::find(kTypeNames.begin(), kTypeNames.end(), name.get_ref<const std::string&>());
    if (found != kTypeNames.end()) return static_cast<Type>(found - kTypeNames.begin());
  }
  return schema_error("type", pointer,
                      "must be object, array, string, integer, number, boolean, null or a list");
}

}  // namespace

Error schema_error(std::string_view keyword, const std::string& pointer, std::string_view problem) {
  std::string text(keyword);
  text += " at " + pointer + ' ';
  text += problem;
  return make_error(Errc::unsupported, std::move(text));
}

const Json* find_keyword(const Json& schema, std::string_view name) {
  for (const auto& [key, value] : schema.get_ref<const Json::object_t&>()) {
    if (key == name) return &value;
  }
  return nullptr;
}

Status check_keywords(const Json& schema, const std::string& pointer) {
  for (const auto& [key, value] : schema.items()) {
    if ((key == "uniqueItems" && value != false) ||
        std::find(kUnsupported.begin(), kUnsupported.end(), key) != kUnsupported.end()) {
      return schema_error(key, pointer, "is not supported");
    }
  }
  return {};
}

Status check_alone(const Json& schema, const std::string& pointer, std::string_view keyword,
                   std::initializer_list<std::string_view> allowed) {
  for (const auto& [key, value] : schema.items()) {
    if (key == keyword || is_one_of(key, allowed)) continue;
    if (std::find(kSupported.begin(), kSupported.end(), key) != kSupported.end()) {
      return schema_error(key, pointer, "is not supported beside " + std::string(keyword));
    }
  }
  return {};
}

Result<std::vector<Type>> read_types(const Json& schema, const std::string& pointer) {
  std::vector<Type> types;
  if (const Json* type = find_keyword(schema, "type")) {
    if (type->is_array()) {
      for (const Json& name : *type) {
        CEDAR_TRY(const Type one, type_of_name(name, pointer));
        types.push_back(one);
      }
      if (types.empty()) return schema_error("type", pointer, "must not be an empty list");
    } else {
      CEDAR_TRY(const Type one, type_of_name(*type, pointer));
      types.push_back(one);
    }
  } else {
    for (const auto& [key, value] : schema.items()) {
      const size_t subject = subject_of(key);
      if (subject < kTypeCount) types.push_back(static_cast<Type>(subject));
    }
    if (types.empty()) {
      types = {Type::object, Type::array, Type::string, Type::number, Type::boolean, Type::null};
    }
  }
  if (const Json* nullable = find_keyword(schema, "nullable"); nullable && *nullable == true) {
    types.push_back(Type::null);
  }
  std::sort(types.begin(), types.end());
  types.erase(std::unique(types.begin(), types.end()), types.end());
  return types;
}

bool is_of_type(const Json& value, Type type) {
  switch (type) {
    case Type::object: return value.is_object();
    case Type::array: return value.is_array();
    case Type::string: return value.is_string();
    case Type::integer: return value.is_number_integer() || value.is_binary();
    case Type::number: return value.is_number() || value.is_binary();
    case Type::boolean: return value.is_boolean();
    case Type::null: return value.is_null();
  }
  return false;
}

Result<int32_t> read_count(const Json& schema, const std::string& pointer, const char* keyword,
                           int32_t absent) {
  const Json* value = find_keyword(schema, keyword);
  if (value == nullptr) return absent;
  if (!value->is_number_integer() || *value < 0 || *value > kMaxCount) {
    return schema_error(keyword, pointer,
                        "must be an integer in [0, " + std::to_string(kMaxCount) + "]");
  }
  return value->get<int32_t>();
}

std::string pointer_to(const std::string& parent, std::string_view name) {
  std::string pointer = parent + '/';
  for (const char c : name) {
    if (c == '~') pointer += "~0";
    else if (c == '/') pointer += "~1";
    else pointer += c;
  }
  return pointer;
}

Result<const Json*> resolve_pointer(const Json& root, const std::string& reference) {
  if (reference.empty() || reference.front() != '#') {
    return make_error(Errc::unsupported, "must begin with #: other documents are not read");
  }
  const Json* at = &root;
  std::string_view rest = std::string_view(reference).substr(1);
  if (!rest.empty() && rest.front() != '/') {
    return make_error(Errc::unsupported, "names an anchor, which is not supported");
  }
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const size_t end = std::min(rest.find('/'), rest.size());
    std::string name;
    for (size_t i = 0; i < end; ++i) {
      const bool escaped =
          rest[i] == '~' && i + 1 < end && (rest[i + 1] == '0' || rest[i + 1] == '1');
      if (!escaped) {
        name += rest[i];
      } else {
        name += rest[++i] == '0' ? '~' : '/';
      }
    }
    rest.remove_prefix(end);
    if (at->is_object()) {
      at = find_keyword(*at, name);
    } else if (at->is_array()) {
      size_t index = 0;
      const auto [stop, code] = std::from_chars(name.data(), name.data() + name.size(), index);
      const bool is_index = code == std::errc() && stop == name.data() + name.size();
      at = is_index && index < at->size() ? &(*at)[index] : nullptr;
    } else {
      at = nullptr;
    }
    if (at == nullptr) return make_error(Errc::unsupported, "points to nothing");
  }
  return at;
}

}  // namespace cedar::engine::structured
