#pragma once
// A second opinion on JSON Schema for tests: walks the value, where the product walks an automaton. Knows the
// keywords that engine/structured supports; `oneOf` counts as anyOf there and here.

#include <nlohmann/json.hpp>

#include <regex>
#include <string>

#include "model/utf8.h"

namespace cedar::test {

class SchemaValidator {
 public:
  using Json = nlohmann::ordered_json;
  /// `closed`: objects without additionalProperties allow none.
  explicit SchemaValidator(Json root, bool closed = false)
      : root_(std::move(root)), closed_(closed) {}

  bool accepts(const Json& value) const { return accepts(root_, value); }

 private:
  bool accepts(const Json& schema, const Json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    if (schema.value("nullable", false) && value.is_null()) return true;
    if (schema.contains("$ref")) {
      const auto pointer = schema["$ref"].get<std::string>().substr(1);
      return accepts(root_[Json::json_pointer(pointer)], value);
    }
    for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
      if (!schema.contains(keyword)) continue;
      for (const Json& branch : schema[keyword]) {
        if (accepts(branch, value)) return true;
      }
      return false;
    }
    if (schema.contains("const")) {
      return equal(schema["const"], value) && accepts_type(schema, value);
    }
    if (schema.contains("enum")) {
      bool found = false;
      for (const Json& one : schema["enum"]) found = found || equal(one, value);
      return found && accepts_type(schema, value);
    }
    if (!accepts_type(schema, value)) return false;
    if (value.is_number()) return accepts_number(schema, value);
    if (value.is_string()) return accepts_string(schema, value.get<std::string>());
    if (value.is_array()) return accepts_array(schema, value);
    return !value.is_object() || accepts_object(schema, value);
  }

  /// Members of an object may come in any order.
  static bool equal(const Json& a, const Json& b) {
    return nlohmann::json::parse(a.dump()) == nlohmann::json::parse(b.dump());
  }

  static bool is_of(const std::string& type, const Json& value) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    if (type == "boolean") return value.is_boolean();
    return value.is_null();
  }

  static bool accepts_type(const Json& schema, const Json& value) {
    if (!schema.contains("type")) return true;
    const Json& type = schema["type"];
    if (type.is_string()) return is_of(type.get<std::string>(), value);
    for (const Json& one : type) {
      if (is_of(one.get<std::string>(), value)) return true;
    }
    return false;
  }

  static bool accepts_number(const Json& schema, const Json& value) {
    const auto v = value.get<long double>();
    const auto bound = [&](const char* name) { return schema[name].get<long double>(); };
    if (schema.contains("minimum") && v < bound("minimum")) return false;
    if (schema.contains("maximum") && v > bound("maximum")) return false;
    if (schema.contains("exclusiveMinimum") && v <= bound("exclusiveMinimum")) return false;
    return !(schema.contains("exclusiveMaximum") && v >= bound("exclusiveMaximum"));
  }

  static bool accepts_string(const Json& schema, const std::string& value) {
    size_t characters = 0;
    for (const char c : value) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    if (schema.contains("minLength") && characters < schema["minLength"].get<size_t>())
      return false;
    if (schema.contains("maxLength") && characters > schema["maxLength"].get<size_t>())
      return false;
    if (!schema.contains("pattern")) return true;
    return std::regex_search(wide(value), std::wregex(wide(schema["pattern"].get<std::string>())));
  }

  /// One element per character. REQUIRES: well-formed UTF-8.
  static std::wstring wide(std::string_view text) {
    std::wstring result;
    while (!text.empty()) {
      const model::Utf8Step step = model::decode_utf8(text);
      result += static_cast<wchar_t>(step.code);
      text.remove_prefix(step.length);
    }
    return result;
  }

  bool accepts_array(const Json& schema, const Json& value) const {
    if (schema.contains("minItems") && value.size() < schema["minItems"].get<size_t>())
      return false;
    if (schema.contains("maxItems") && value.size() > schema["maxItems"].get<size_t>())
      return false;
    const Json prefix = schema.contains("prefixItems") ? schema["prefixItems"] : Json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      if (i < prefix.size()) {
        if (!accepts(prefix[i], value[i])) return false;
      } else if (schema.contains("items") && !accepts(schema["items"], value[i])) {
        return false;
      }
    }
    return true;
  }

  bool accepts_object(const Json& schema, const Json& value) const {
    const Json properties = schema.contains("properties") ? schema["properties"] : Json::object();
    if (schema.contains("required")) {
      for (const Json& name : schema["required"]) {
        if (!value.contains(name.get<std::string>())) return false;
      }
    }
    for (const auto& [name, item] : value.items()) {
      if (properties.contains(name)) {
        if (!accepts(properties[name], item)) return false;
      } else if (schema.contains("additionalProperties")) {
        if (!accepts(schema["additionalProperties"], item)) return false;
      } else if (closed_) {
        return false;
      }
    }
    return true;
  }

  Json root_;
  bool closed_;
};

}  // namespace cedar::test
