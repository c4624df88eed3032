#include "model/chat_fields.h"

#include "model/json_python.h"

namespace cedar::model {

using nlohmann::ordered_json;

const ordered_json* find_field(const ordered_json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Error field_error(const std::string& path, const std::string& problem, const ordered_json& found) {
  constexpr size_t kShown = 96;
  std::string value;
  if (found.is_structured() && found.size() > 8) {
    value = found.is_array() ? "a list" : "an object";
  } else {
    auto text = write_python_json(found);
    value = text ? std::move(*text) : std::string("a deeply nested value");
  }
  // Cut before a character, not inside one.
  if (value.size() > kShown) {
    size_t end = kShown;
    while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xC0) == 0x80) --end;
    value = value.substr(0, end) + "...";
  }
  return field_error(path, problem + ", got " + value);
}

Error field_error(const std::string& path, const std::string& problem) {
  return make_error(Errc::invalid_argument, path + ": " + problem);
}

Status check_field_object(const ordered_json& value, const std::string& path) {
  if (!value.is_object()) return field_error(path, "expected an object", value);
  return {};
}

Result<std::string> string_field(const ordered_json& object, const std::string& path,
                                 const char* key) {
  const ordered_json* value = find_field(object, key);
  if (value == nullptr) return std::string();
  if (!value->is_string()) return field_error(path + "." + key, "expected a text", *value);
  return value->get<std::string>();
}

}  // namespace cedar::model
