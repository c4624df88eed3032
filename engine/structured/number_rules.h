#pragma once
// Numbers between two bounds, digit by digit.

#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/result.h"
#include "engine/structured/graph.h"

namespace cedar::engine::structured {

/// A decimal number; `whole` has no leading and `fraction` no trailing zeros.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

/// Errors: unsupported (no number, or more than 15 digits before or after the point).
Result<Decimal> read_decimal(const nlohmann::ordered_json& value);
/// Negative, zero or positive as `a` is below, equal to or above `b`.
int compare(const Decimal& a, const Decimal& b);

struct NumberBounds {
  std::optional<Decimal> low, high;
  bool low_open = false, high_open = false;  // the bound itself is not allowed
};

/// Whole numbers without a sign of plus, leading zeros, point or exponent; without bounds those of 64 bits with
/// a sign. An empty range leaves `to` out of reach.
void add_integer(Graph& graph, Vertex from, const NumberBounds& bounds, Vertex to);

/// Without bounds: up to 15 digits before the point, 17 behind it and 2 of the exponent. With bounds there is
/// no exponent.
void add_number(Graph& graph, Vertex from, const NumberBounds& bounds, Vertex to);

}  // namespace cedar::engine::structured
