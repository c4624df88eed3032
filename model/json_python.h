#pragma once
// JSON as Python's json module reads and writes it, because prompts were written that way when the
// model was trained (spec/chat.md 2.7): json.dumps(value, ensure_ascii=False).

#include <cstddef>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "core/result.h"

namespace cedar::model {

/// Deeper documents are refused: readers and writers are recursive.
constexpr int kMaxJsonDepth = 128;
/// So are documents of more values, list entries and members counted one by one: a short text can name values
/// that take fifty times its bytes. Room for a prompt of a million token ids.
constexpr size_t kMaxJsonValues = 1'500'000;

/// Keeps what a prompt can show: the order of keys (a repeated key keeps its first place and takes
/// its last value) and integers of any size. An integer that fits no 64-bit type becomes a `binary`
/// value that holds its digits; write_python_json knows it, and a check for a number refuses it.
/// Time is linear in the text also for objects of very many keys, which the plain parser of
/// ordered_json is not.
/// Errors: invalid_argument (not JSON, ill-formed UTF-8, a number beyond double's range, too
/// deep, too many values); the message names the byte or the limit, never the text.
Result<nlohmann::ordered_json> read_python_json(std::string_view text);

/// ", " and ": " as separators, non-ASCII text as it is, floats as repr() writes them.
/// Errors: invalid_argument (too deep).
Result<std::string> write_python_json(const nlohmann::ordered_json& value);

/// Appends `text` as it stands between the quotes of a JSON string: only the quote, the backslash
/// and control characters below U+0020 are escaped.
void append_json_escaped(std::string& out, std::string_view text);

/// repr() of a float: the shortest digits that read back, "1.0", "1e-07", "1e+16", "inf", "nan".
std::string python_float(double value);

}  // namespace cedar::model
