#include "gateway/field_reader.h"

#include <cmath>
#include <cstdio>
#include <optional>

namespace cedar::gateway {
namespace {

/// Integers of any JSON spelling that fit 64 bits: 3, 3.0.
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (number == std::floor(number) && std::abs(number) < 9e15)
      return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

std::string plain(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(value));
  return text;
}

}  // namespace

std::string describe(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::boolean: return value.get<bool>() ? "true" : "false";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float: return value.dump();
    case Json::value_t::string: return "a string";
    case Json::value_t::array: return "an array";
    case Json::value_t::object: return "an object";
    case Json::value_t::binary: return "an integer beyond 64 bits";
    case Json::value_t::discarded: break;
  }
  return "nothing";
}

void FieldReader::complain(const std::string& name, const std::string& problem) {
  absorb(make_error(Errc::invalid_argument, path_ + name + ": " + problem));
}

const Json* FieldReader::find(const char* name) const {
  const auto field = object_.find(name);
  if (field == object_.end() || field->is_null()) return nullptr;
  return &*field;
}

void FieldReader::boolean(const char* name, bool& value) {
  const Json* field = find(name);
  if (field == nullptr) return;
  if (!field->is_boolean()) return complain(name, "must be true or false, got " + describe(*field));
  value = field->get<bool>();
}

void FieldReader::integer(const char* name, int64_t min, int64_t max, int64_t& value) {
  const Json* field = find(name);
  if (field == nullptr) return;
  const auto number = as_integer(*field);
  if (!number) return complain(name, "must be an integer, got " + describe(*field));
  if (*number < min || *number > max) {
    return complain(name, "must be in [" + std::to_string(min) + ", " + std::to_string(max) +
                              "], got " + std::to_string(*number));
  }
  value = *number;
}

void FieldReader::number(const char* name, float min, float max, float& value, bool open_min) {
  const Json* field = find(name);
  if (field == nullptr) return;
  if (!field->is_number()) return complain(name, "must be a number, got " + describe(*field));
  const double number = field->get<double>();
  const bool low =
      open_min ? number <= static_cast<double>(min) : number < static_cast<double>(min);
  if (low || number > static_cast<double>(max)) {
    return complain(name, std::string("must be in ") + (open_min ? "(" : "[") + plain(min) + ", " +
                              plain(max) + "], got " + describe(*field));
  }
  value = static_cast<float>(number);
}

void FieldReader::text(const char* name, size_t max_bytes, std::string& value) {
  const Json* field = find(name);
  if (field == nullptr) return;
  if (!field->is_string()) return complain(name, "must be a string, got " + describe(*field));
  const auto& text = field->get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    return complain(name, "must have at most " + std::to_string(max_bytes) + " bytes, got " +
                              std::to_string(text.size()));
  }
  value = text;
}

void FieldReader::texts(const char* name, size_t max_count, std::vector<std::string>& value) {
  const Json* field = find(name);
  if (field == nullptr) return;
  std::vector<std::string> result;
  const auto add = [&](const Json& item) {
    if (!item.is_string()) return false;
    if (!item.get_ref<const std::string&>().empty()) result.push_back(item.get<std::string>());
    return true;
  };
  if (field->is_array()) {
    if (field->size() > max_count) {
      return complain(name, "must have at most " + std::to_string(max_count) + " entries, got " +
                                std::to_string(field->size()));
    }
    for (const Json& item : *field) {
      if (!add(item)) return complain(name, "must hold strings only, got " + describe(item));
    }
  } else if (!add(*field)) {
    return complain(name, "must be a string or a list of strings, got " + describe(*field));
  }
  value = std::move(result);
}

void FieldReader::token_ids(const char* name, int64_t vocab_size, std::vector<TokenId>& value) {
  if (const Json* field = find(name)) token_ids(name, *field, vocab_size, value);
}

void FieldReader::token_ids(const char* name, const Json& list, int64_t vocab_size,
                            std::vector<TokenId>& value) {
  if (!list.is_array()) return complain(name, "must be a list of token ids, got " + describe(list));
  std::vector<TokenId> result;
  result.reserve(list.size());
  for (const Json& item : list) {
    const auto id = as_integer(item);
    if (!id || *id < 0 || *id >= vocab_size) {
      return complain(
          name, "must hold ids in [0, " + std::to_string(vocab_size) + "), got " + describe(item));
    }
    result.push_back(static_cast<TokenId>(*id));
  }
  value = std::move(result);
}

const Json* FieldReader::object(const char* name) {
  const Json* field = find(name);
  if (field == nullptr) return nullptr;
  if (!field->is_object()) {
    complain(name, "must be an object, got " + describe(*field));
    return nullptr;
  }
  return field;
}

Error without_content(Error error) {
  constexpr size_t kLongestName = 32;
  constexpr std::string_view kGot = ", got ";
  const size_t at = error.context.rfind(kGot);
  if (at == std::string::npos) return error;
  const std::string_view value = std::string_view(error.context).substr(at + kGot.size());
  const bool structured = value.rfind('{', 0) == 0 || value.rfind('[', 0) == 0;
  if (structured || value.size() > kLongestName) error.context.resize(at);
  return error;
}

}  // namespace cedar::gateway
