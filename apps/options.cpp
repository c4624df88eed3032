#include "apps/options.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>

namespace cedar::apps {
namespace {

template <class Number>
bool parse_whole(const std::string& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// CLI11 reads 010 as eight afterwards. Returns that there is no complaint.
std::string canonical(int64_t value, std::string& text) {
  text = std::to_string(value);
  return {};
}

std::string plain(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

CLI::Validator integer_in(int64_t min, int64_t max) {
  const std::string low = std::to_string(min);
  const std::string high = std::to_string(max);
  const auto check = [=](std::string& text) {
    int64_t value = 0;
    if (parse_whole(text, value) && value >= min && value <= max) return canonical(value, text);
    return "must be an integer in [" + low + ", " + high + "], got " + text;
  };
  return CLI::Validator(check, low + ".." + high);
}

CLI::Validator any_integer() {
  const auto check = [](std::string& text) {
    int64_t value = 0;
    return parse_whole(text, value) ? canonical(value, text) : "must be an integer, got " + text;
  };
  return CLI::Validator(check, "");
}

CLI::Validator number_in(double min, double max) {
  const std::string low = plain(min);
  const std::string high = plain(max);
  const auto check = [=](std::string& text) {
    double value = 0;
    if (parse_whole(text, value) && std::isfinite(value) && value >= min && value <= max) {
      return std::string();
    }
    return "must be a number in [" + low + ", " + high + "], got " + text;
  };
  return CLI::Validator(check, low + ".." + high);
}

std::optional<int> parse_options(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return std::nullopt;
}

}  // namespace cedar::apps
