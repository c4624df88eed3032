#pragma once
// Result<T>: a value or an Error. Member names follow std::expected so that it can replace this type one day.

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/check.h"
#include "core/error.h"

namespace cedar {

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  /// REQUIRES: has_value().
  T& value() & {
    CEDAR_ASSERT(has_value(), error_message());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    CEDAR_ASSERT(has_value(), error_message());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    CEDAR_ASSERT(has_value(), error_message());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  /// REQUIRES: !has_value().
  Error& error() { return *std::get_if<1>(&state_); }
  const Error& error() const { return *std::get_if<1>(&state_); }

 private:
  std::string error_message() const { return has_value() ? std::string() : error().message(); }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  void value() const { CEDAR_ASSERT(has_value(), error_ ? error_->message() : std::string()); }

  Error& error() { return *error_; }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

inline Error make_error(Errc code, std::string context) { return Error{code, std::move(context)}; }

}  // namespace cedar

#define CEDAR_CONCAT_INNER(a, b) a##b
#define CEDAR_CONCAT(a, b) CEDAR_CONCAT_INNER(a, b)

/// `CEDAR_TRY(auto blocks, pool.allocate(n));` returns the error early. One per line, inside braces.
#define CEDAR_TRY(declaration, expression) \
  CEDAR_TRY_IMPL(CEDAR_CONCAT(cedar_try_, __LINE__), declaration, expression)
#define CEDAR_TRY_IMPL(name, declaration, expression)    \
  auto name = (expression);                              \
  if (!name.has_value()) return std::move(name.error()); \
  declaration = std::move(*name)

/// The same for a Status.
#define CEDAR_CHECK_OK(expression)                                                               \
  do {                                                                                           \
    if (auto cedar_status = (expression); !cedar_status) return std::move(cedar_status.error()); \
  } while (false)
