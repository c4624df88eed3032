#pragma once
// Reading fields of a request's JSON. A field that is null counts as absent.

#include <string>

#include <nlohmann/json.hpp>

#include "core/result.h"

namespace cedar::model {

/// Null when `object` has no such key.
const nlohmann::ordered_json* find_field(const nlohmann::ordered_json& object, const char* key);

/// "path: problem, got value"
Error field_error(const std::string& path, const std::string& problem,
                  const nlohmann::ordered_json& found);
Error field_error(const std::string& path, const std::string& problem);

/// Errors: invalid_argument naming `path`.
Status check_field_object(const nlohmann::ordered_json& value, const std::string& path);

/// The text of a field; empty when absent. Errors: invalid_argument when it is no string.
Result<std::string> string_field(const nlohmann::ordered_json& object, const std::string& path,
                                 const char* key);

}  // namespace cedar::model
