#include "model/json_python.h"

#include <array>
#include <charconv>
#include <cmath>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "model/strict_json.h"

namespace cedar::model {
namespace {

using nlohmann::ordered_json;

/// Subtype that marks a binary value as the digits of a large integer.
constexpr uint64_t kBigInteger = 1;

/// Builds the document from parser events.
class Builder final : public nlohmann::json_sax<ordered_json> {
 public:
  ordered_json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string& text) override {
    if (text.find_first_of(".eE") == std::string::npos) {
      return add(ordered_json::binary({text.begin(), text.end()}, kBigInteger));
    }
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(ordered_json::binary_t&) override { return false; }  // JSON text has none

  bool start_object(size_t) override { return open(ordered_json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(ordered_json::array()); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    levels_.back().key = std::move(name);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    problem_ = json_problem(error);
    return false;
  }

 private:
  struct Level {
    ordered_json value;
    std::string key;                                // of the next member
    std::unordered_map<std::string, size_t> index;  // of the members so far
  };

  bool open(ordered_json empty) {
    if (levels_.size() == kMaxJsonDepth) {
      problem_ = "nested deeper than " + std::to_string(kMaxJsonDepth);
      return false;
    }
    levels_.push_back({std::move(empty), {}, {}});
    return true;
  }

  bool close() {
    ordered_json value = std::move(levels_.back().value);
    levels_.pop_back();
    return add(std::move(value));
  }

  bool add(ordered_json value) {
    if (++values_ > kMaxJsonValues) {
      problem_ = "more than " + std::to_string(kMaxJsonValues) + " values";
      return false;
    }
    if (levels_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
      return true;
    }
    // ordered_map finds keys by a linear search; as the vector that it is, it takes members in
    // constant time.
    ordered_json::object_t::Container& members = level.value.get_ref<ordered_json::object_t&>();
    const auto [place, is_new] = level.index.emplace(level.key, members.size());
    if (is_new) {
      members.emplace_back(std::move(level.key), std::move(value));
    } else {
      members[place->second].second = std::move(value);
    }
    return true;
  }

  size_t values_ = 0;
  ordered_json root_;
  std::vector<Level> levels_;
  std::string problem_;
};

bool write(std::string& out, const ordered_json& value, int depth);

void write_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

bool write_members(std::string& out, const ordered_json& object, int depth) {
  const char* separator = "{";
  for (const auto& [key, member] : object.get_ref<const ordered_json::object_t&>()) {
    out += separator;
    write_string(out, key);
    out += ": ";
    if (!write(out, member, depth + 1)) return false;
    separator = ", ";
  }
  out += object.empty() ? "{}" : "}";
  return true;
}

bool write_elements(std::string& out, const ordered_json& array, int depth) {
  const char* separator = "[";
  for (const ordered_json& element : array) {
    out += separator;
    if (!write(out, element, depth + 1)) return false;
    separator = ", ";
  }
  out += array.empty() ? "[]" : "]";
  return true;
}

/// False when the document is too deep.
bool write(std::string& out, const ordered_json& value, int depth) {
  switch (value.type()) {
    case ordered_json::value_t::null:
    case ordered_json::value_t::discarded: out += "null"; return true;
    case ordered_json::value_t::boolean: out += value.get<bool>() ? "true" : "false"; return true;
    case ordered_json::value_t::number_integer:
      out += std::to_string(value.get<int64_t>());
      return true;
    case ordered_json::value_t::number_unsigned:
      out += std::to_string(value.get<uint64_t>());
      return true;
    case ordered_json::value_t::number_float: {
      const auto number = value.get<double>();
      // json.dumps spells what is no JSON number in its own way.
      if (std::isnan(number)) out += "NaN";
      else if (std::isinf(number)) out += number > 0 ? "Infinity" : "-Infinity";
      else out += python_float(number);
      return true;
    }
    case ordered_json::value_t::string:
      write_string(out, value.get_ref<const std::string&>());
      return true;
    case ordered_json::value_t::binary: {
      const ordered_json::binary_t& digits = value.get_binary();
      out.append(digits.begin(), digits.end());
      return true;
    }
    case ordered_json::value_t::object:
      return depth < kMaxJsonDepth && write_members(out, value, depth);
    case ordered_json::value_t::array:
      return depth < kMaxJsonDepth && write_elements(out, value, depth);
  }
  return false;
}

}  // namespace

Result<ordered_json> read_python_json(std::string_view text) {
  // The parser takes a NUL byte for the end of the text and would ignore what follows.
  if (text.find('\0') != std::string_view::npos) {
    return make_error(Errc::invalid_argument, "not valid JSON: it contains a NUL byte");
  }
  Builder builder;
  try {
    if (ordered_json::sax_parse(text, &builder)) return builder.take();
  } catch (const nlohmann::detail::exception& error) {
    return make_error(Errc::invalid_argument, "not valid JSON: " + json_problem(error));
  }
  return make_error(Errc::invalid_argument, "not valid JSON: " + builder.problem());
}

Result<std::string> write_python_json(const ordered_json& value) {
  std::string out;
  if (!write(out, value, 0)) {
    return make_error(Errc::invalid_argument,
                      "JSON nested deeper than " + std::to_string(kMaxJsonDepth));
  }
  return out;
}

void append_json_escaped(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (const auto byte = static_cast<uint8_t>(c); byte < 0x20) {
          out += "\\u00";
          out += kHex[byte >> 4];
          out += kHex[byte & 15];
        } else {
          out += c;
        }
    }
  }
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::array<char, 32> buffer;
  const auto written = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                     std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(written.ptr - buffer.data()));

  // [-]d[.ddd]e(+|-)xx, the shortest digits that read back as the same value.
  const bool negative = text.front() == '-';
  const size_t e = text.find('e');
  std::string digits(1, text[negative ? 1 : 0]);
  if (const size_t point = text.find('.'); point != std::string_view::npos) {
    digits += text.substr(point + 1, e - point - 1);
  }
  int exponent = 0;
  const size_t exponent_begin = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + exponent_begin, text.data() + text.size(), exponent);

  std::string out = negative ? "-" : "";
  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) out += "." + digits.substr(1);
    out += text.substr(e);
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (exponent >= count - 1) {
    out += digits + std::string(static_cast<size_t>(exponent - count + 1), '0') + ".0";
  } else {
    const auto whole = static_cast<size_t>(exponent) + 1;
    out += digits.substr(0, whole) + "." + digits.substr(whole);
  }
  return out;
}

}  // namespace cedar::model
