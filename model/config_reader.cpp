#include "model/config_reader.h"

#include <cmath>
#include <limits>
#include <sstream>

namespace cedar::model {
namespace {

using nlohmann::json;

std::string range_text(IntRange range) {
  return "an integer in [" + std::to_string(range.min) + ", " + std::to_string(range.max) + "]";
}

std::string number_text(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

ConfigReader::ConfigReader(const json& object, std::string prefix)
    : object_(&object), prefix_(std::move(prefix)) {}

void ConfigReader::refuse(const std::string& key, const std::string& problem) {
  if (!error_) error_ = make_error(Errc::invalid_config, prefix_ + key + ": " + problem);
}

Status ConfigReader::status() const {
  if (error_) return *error_;
  return {};
}

bool ConfigReader::has(const char* key) const {
  const auto found = object_->find(key);
  return found != object_->end() && !found->is_null();
}

const json* ConfigReader::member(const char* key) {
  if (error_) return nullptr;
  const auto found = object_->find(key);
  if (found == object_->end()) {
    refuse(key, "the key is missing");
    return nullptr;
  }
  return &*found;
}

bool ConfigReader::integer(const std::string& key, const json& value, IntRange range,
                           int64_t& out) {
  // An unsigned value above int64's range would wrap in get<int64_t>.
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (fits) out = value.get<int64_t>();
  if (fits && out >= range.min && out <= range.max) return true;
  refuse(key, "expected " + range_text(range) + ", got " + short_text(value));
  return false;
}

bool ConfigReader::number(const std::string& key, const json& value, double above, double& out) {
  if (value.is_number()) out = value.get<double>();
  if (value.is_number() && std::isfinite(out) && out > above) return true;
  refuse(key, "expected a number above " + number_text(above) + ", got " + short_text(value));
  return false;
}

void ConfigReader::read(const char* key, int64_t& out, IntRange range) {
  if (const json* value = member(key)) integer(key, *value, range, out);
}

void ConfigReader::read(const char* key, int32_t& out, IntRange range) {
  int64_t wide = 0;
  if (const json* value = member(key); value != nullptr && integer(key, *value, range, wide)) {
    out = static_cast<int32_t>(wide);
  }
}

void ConfigReader::read(const char* key, double& out, double above) {
  if (const json* value = member(key)) number(key, *value, above, out);
}

void ConfigReader::read(const char* key, float& out, double above) {
  double wide = 0;
  const json* value = member(key);
  if (value == nullptr || !number(key, *value, above, wide)) return;
  out = static_cast<float>(wide);
  if (!std::isfinite(out) || !(static_cast<double>(out) > above)) {
    refuse(key, "no float holds " + short_text(*value));
  }
}

template <class T>
void ConfigReader::read_list(const char* key, std::vector<T>& out, IntRange range) {
  const json* list = member(key);
  if (list == nullptr) return;
  if (!list->is_array()) {
    refuse(key, "expected a list of integers, got " + short_text(*list));
    return;
  }
  out.clear();
  for (size_t i = 0; i < list->size(); ++i) {
    int64_t wide = 0;
    if (!integer(std::string(key) + "[" + std::to_string(i) + "]", (*list)[i], range, wide)) return;
    out.push_back(static_cast<T>(wide));
  }
}

void ConfigReader::read(const char* key, std::vector<int64_t>& out, IntRange range) {
  read_list(key, out, range);
}
void ConfigReader::read(const char* key, std::vector<int32_t>& out, IntRange range) {
  read_list(key, out, range);
}

void ConfigReader::read_or_null(const char* key, std::optional<int32_t>& out, IntRange range) {
  if (const json* value = member(key); value != nullptr && !value->is_null()) {
    read(key, out.emplace(), range);
  }
}

void ConfigReader::read_if_present(const char* key, std::optional<int32_t>& out, IntRange range) {
  if (has(key)) read(key, out.emplace(), range);
}

void ConfigReader::read_if_present(const char* key, std::optional<double>& out, double above) {
  if (has(key)) read(key, out.emplace(), above);
}

void ConfigReader::require(const char* key, const json& value) {
  const json* found = member(key);
  if (found != nullptr && *found != value) {
    refuse(key, "expected " + short_text(value) + ", got " + short_text(*found));
  }
}

void ConfigReader::require_if_present(const char* key, const json& value) {
  if (object_->contains(key)) require(key, value);
}

const json& ConfigReader::object(const char* key) {
  static const json kEmpty = json::object();
  const json* found = member(key);
  if (found == nullptr) return kEmpty;
  if (!found->is_object()) {
    refuse(key, "expected an object, got " + short_text(*found));
    return kEmpty;
  }
  return *found;
}

}  // namespace cedar::model
