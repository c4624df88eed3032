#pragma once
// Typed reading of one JSON object of config.json. Keeps the first problem; reads after it do
// nothing, so a caller lists its keys and asks once.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "model/strict_json.h"

namespace cedar::model {

/// Both ends belong to the range.
struct IntRange {
  int64_t min = 0;
  int64_t max = 0;
};

class ConfigReader {
 public:
  /// `prefix` ("text_config.") stands before every key in messages. `object` must outlive the
  /// reader.
  ConfigReader(const nlohmann::json& object, std::string prefix);

  void read(const char* key, int64_t& out, IntRange range);
  void read(const char* key, int32_t& out, IntRange range);
  /// A finite number above `above`.
  void read(const char* key, double& out, double above);
  void read(const char* key, float& out, double above);
  void read(const char* key, std::vector<int64_t>& out, IntRange range);
  void read(const char* key, std::vector<int32_t>& out, IntRange range);
  /// The key must exist; null reads as nothing.
  void read_or_null(const char* key, std::optional<int32_t>& out, IntRange range);
  /// Absent and null both read as nothing.
  void read_if_present(const char* key, std::optional<int32_t>& out, IntRange range);
  void read_if_present(const char* key, std::optional<double>& out, double above);

  /// The only value this program understands.
  void require(const char* key, const nlohmann::json& value);
  void require_if_present(const char* key, const nlohmann::json& value);

  /// Records `problem` ("expected ..., got ...") for the key unless there is one already.
  void refuse(const std::string& key, const std::string& problem);
  /// The member as an object; an empty object after a problem.
  const nlohmann::json& object(const char* key);
  bool has(const char* key) const;

  Status status() const;

 private:
  const nlohmann::json* member(const char* key);
  bool integer(const std::string& key, const nlohmann::json& value, IntRange range, int64_t& out);
  bool number(const std::string& key, const nlohmann::json& value, double above, double& out);
  template <class T>
  void read_list(const char* key, std::vector<T>& out, IntRange range);

  const nlohmann::json* object_;
  std::string prefix_;
  std::optional<Error> error_;
};

}  // namespace cedar::model
