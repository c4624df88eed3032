#pragma once
// Typed reading of one JSON object's fields. The first complaint stays; absent and null fields leave the
// default as it is. Every complaint begins with the field's path: "temperature: must be in [0, 2], got 7".

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/result.h"

namespace cedar::gateway {

using Json = nlohmann::ordered_json;

class FieldReader {
 public:
  /// `path` is what stands before the field names: "" or "stream_options.". REQUIRES: object.is_object().
  explicit FieldReader(const Json& object, std::string path = {})
      : object_(object), path_(std::move(path)) {}

  /// Null when the field is absent or null.
  const Json* find(const char* name) const;

  void boolean(const char* name, bool& value);
  void integer(const char* name, int64_t min, int64_t max, int64_t& value);
  /// `open_min`: `min` itself is not allowed.
  void number(const char* name, float min, float max, float& value, bool open_min = false);
  /// Longer strings than `max_bytes` are refused.
  void text(const char* name, size_t max_bytes, std::string& value);
  /// A string or a list of at most `max_count` strings; empty strings are dropped.
  void texts(const char* name, size_t max_count, std::vector<std::string>& value);
  /// A list of token ids below `vocab_size`.
  void token_ids(const char* name, int64_t vocab_size, std::vector<TokenId>& value);
  /// The same for a list that was found elsewhere; `name` is for complaints.
  void token_ids(const char* name, const Json& list, int64_t vocab_size,
                 std::vector<TokenId>& value);
  /// A nested object; null when absent.
  const Json* object(const char* name);

  void complain(const std::string& name, const std::string& problem);
  void absorb(const Status& status) {
    if (!status && status_) status_ = status;
  }
  const Status& status() const { return status_; }

 private:
  const Json& object_;
  std::string path_;
  Status status_;
};

/// A JSON value as it may appear in an error message: its kind, and small numbers and booleans themselves.
/// Never text that a client sent.
std::string describe(const Json& value);

/// Complaints of other rooms quote the value they found. Short names (a role, a type) help; anything that may
/// be what people wrote does not belong into an answer that proxies log.
Error without_content(Error error);

}  // namespace cedar::gateway
