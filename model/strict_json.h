#pragma once
// JSON text to a document, refusing what the parser alone lets pass: a key that one object holds
// twice (the last value would win in silence), a NUL byte (the parser reads it as the end and
// ignores what follows), and nesting deep enough to exhaust a recursive reader.

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/result.h"

namespace cedar::model {

/// Errors: `code`, with the parser's position or the repeated key.
Result<nlohmann::json> parse_strict_json(std::string_view text, Errc code);

/// What the parser complains about, for a person: without the library's own tag in front.
std::string json_problem(const nlohmann::json::exception& error);

/// A value for an error message, cut to a readable length.
std::string short_text(const nlohmann::json& value);

}  // namespace cedar::model
