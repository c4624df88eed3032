#pragma once
// Reading one schema object: which keywords there are, and bounds that are checked.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "engine/structured/json_rules.h"

namespace cedar::engine::structured {

constexpr size_t kMaxSchemaBytes = 512 * 1024;
constexpr size_t kMaxSchemas = 4096;
constexpr size_t kMaxProperties = 512;
constexpr size_t kMaxConstants = 2048;
constexpr int32_t kMaxCount = 1'000'000;  // of characters and of items

enum class Type : uint8_t { object, array, string, integer, number, boolean, null };
constexpr size_t kTypeCount = 7;

/// "minItems at #/properties/a: must be ...".
Error schema_error(std::string_view keyword, const std::string& pointer, std::string_view problem);

/// Null where the keyword is absent.
const Json* find_keyword(const Json& schema, std::string_view name);

/// Refuses keywords that restrict values in ways this compiler does not know. Unknown names are no keywords.
Status check_keywords(const Json& schema, const std::string& pointer);

/// Refuses keywords beside `keyword` that restrict values, except for those in `allowed`.
Status check_alone(const Json& schema, const std::string& pointer, std::string_view keyword,
                   std::initializer_list<std::string_view> allowed);

/// The types a schema allows: `type`, else those that its other keywords are about, else all.
/// Beside those of `type`, null when `nullable` says so.
Result<std::vector<Type>> read_types(const Json& schema, const std::string& pointer);
bool is_of_type(const Json& value, Type type);

/// A count in [0, kMaxCount]; `absent` when there is none.
Result<int32_t> read_count(const Json& schema, const std::string& pointer, const char* keyword,
                           int32_t absent);
/// `parent`/`name` with the name escaped as JSON pointers want it.
std::string pointer_to(const std::string& parent, std::string_view name);

/// What "#/..." points to, and null if there is nothing. Errors: unsupported for other documents.
Result<const Json*> resolve_pointer(const Json& root, const std::string& reference);

}  // namespace cedar::engine::structured
