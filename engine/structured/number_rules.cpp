// Design: for every count of digits before the point, a walk in step with the digits of both bounds. `tight` to
// a bound means that all digits so far are the bound's own; once a digit differs, the bound is settled.

#include "engine/structured/number_rules.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>

#include <nlohmann/json.hpp>

#include "model/json_python.h"

namespace cedar::engine::structured {
namespace {

constexpr size_t kMaxDigits = 15;          // of a bound that is no 64-bit integer
constexpr size_t kMaxFractionDigits = 17;  // of a number

/// "12.5e-3" as Python writes floats.
Result<Decimal> from_text(std::string text) {
  Decimal value;
  if (text.front() == '-') {
    value.negative = true;
    text.erase(0, 1);
  }
  int exponent = 0;
  if (const size_t e = text.find('e'); e != std::string::npos) {
    const char* begin = text.data() + e + 1;
    if (*begin == '+') ++begin;
    std::from_chars(begin, text.data() + text.size(), exponent);
    text.resize(e);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits = text.substr(0, point) + (point < text.size() ? text.substr(point + 1) : "");
  auto whole = static_cast<int>(point) + exponent;
  if (whole > 30 || whole < -30) {
    return make_error(Errc::unsupported, "has more digits than bounds may have");
  }
  if (whole < 0) {
    digits.insert(0, static_cast<size_t>(-whole), '0');
    whole = 0;
  }
  if (static_cast<size_t>(whole) > digits.size()) digits.resize(static_cast<size_t>(whole), '0');
  value.whole = digits.substr(0, static_cast<size_t>(whole));
  value.fraction = digits.substr(static_cast<size_t>(whole));
  value.whole.erase(0, std::min(value.whole.find_first_not_of('0'), value.whole.size()));
  if (value.whole.empty()) value.whole = "0";
  value.fraction.resize(value.fraction.find_last_not_of('0') + 1);
  if (value.is_zero()) value.negative = false;
  return value;
}

int compare_magnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int order = a.whole.compare(b.whole); order != 0) return order;
  return a.fraction.compare(b.fraction);
}

std::string plus_one(std::string digits) {
  size_t i = digits.size();
  while (i > 0 && digits[i - 1] == '9') digits[--i] = '0';
  if (i == 0) return "1" + digits;
  ++digits[i - 1];
  return digits;
}

/// Numbers without a sign in [low, high].
struct Magnitudes {
  Decimal low, high;
  bool low_open = false, high_open = false;
  bool whole_only = false;
};

class MagnitudeRules {
 public:
  MagnitudeRules(Graph& graph, const Magnitudes& m, Vertex to) : graph_(graph), m_(m), to_(to) {}

  void add(Vertex from) {
    const int order = compare_magnitudes(m_.low, m_.high);
    if (order > 0 || (order == 0 && (m_.low_open || m_.high_open))) return;
    const size_t shortest = m_.low.whole.size(), longest = m_.high.whole.size();
    for (size_t length = shortest; length <= longest; ++length) {
      add_digit(from, length, length == shortest, length == longest, length > 1);
    }
  }

 private:
  /// `left` digits before the point, this one included.
  void add_digit(Vertex from, size_t left, bool tight_low, bool tight_high, bool not_zero) {
    const char floor = not_zero ? '1' : '0';
    const char low = tight_low ? std::max(floor, m_.low.whole[m_.low.whole.size() - left]) : floor;
    const char high = tight_high ? m_.high.whole[m_.high.whole.size() - left] : '9';
    each_run(low, high, tight_low, tight_high, [&](char first, char last, bool tl, bool th) {
      graph_.bytes(from, static_cast<uint8_t>(first), static_cast<uint8_t>(last),
                   before_digit(left - 1, tl, th));
    });
  }

  Vertex before_digit(size_t left, bool tight_low, bool tight_high) {
    const auto [found, is_new] = whole_.try_emplace({left, tight_low, tight_high}, 0);
    if (!is_new) return found->second;
    const Vertex vertex = found->second = graph_.add_vertex();
    if (left > 0) {
      add_digit(vertex, left, tight_low, tight_high, false);
      return vertex;
    }
    if (may_end(0, tight_low, tight_high)) graph_.jump(vertex, to_);
    if (!m_.whole_only) {
      const Vertex point = graph_.add_vertex();
      graph_.byte(vertex, '.', point);
      add_fraction_digit(point, 0, tight_low, tight_high);
    }
    return vertex;
  }

  /// Digit `at` behind the point.
  void add_fraction_digit(Vertex from, size_t at, bool tight_low, bool tight_high) {
    if (at >= kMaxFractionDigits) return;
    const char low = tight_low ? digit_of(m_.low, at) : '0';
    const char high = tight_high ? digit_of(m_.high, at) : '9';
    each_run(low, high, tight_low, tight_high, [&](char first, char last, bool tl, bool th) {
      graph_.bytes(from, static_cast<uint8_t>(first), static_cast<uint8_t>(last),
                   after_fraction_digit(at, tl, th));
    });
  }

  Vertex after_fraction_digit(size_t at, bool tight_low, bool tight_high) {
    const auto [found, is_new] = fraction_.try_emplace({at, tight_low, tight_high}, 0);
    if (!is_new) return found->second;
    const Vertex vertex = found->second = graph_.add_vertex();
    if (may_end(at + 1, tight_low, tight_high)) graph_.jump(vertex, to_);
    add_fraction_digit(vertex, at + 1, tight_low, tight_high);
    return vertex;
  }

  static char digit_of(const Decimal& bound, size_t at) {
    return at < bound.fraction.size() ? bound.fraction[at] : '0';
  }

  /// Whether the number may stop after `digits` behind the point.
  bool may_end(size_t digits, bool tight_low, bool tight_high) const {
    if (tight_low && (digits < m_.low.fraction.size() || m_.low_open)) return false;
    return !(tight_high && digits >= m_.high.fraction.size() && m_.high_open);
  }

  /// Digits in [low, high], cut where tightness changes.
  template <class Take>
  static void each_run(char low, char high, bool tight_low, bool tight_high, const Take& take) {
    if (low > high) return;
    if (!tight_low && !tight_high) return take(low, high, false, false);
    if (low == high) return take(low, high, tight_low, tight_high);
    take(low, low, tight_low, false);
    if (low + 1 < high) take(static_cast<char>(low + 1), static_cast<char>(high - 1), false, false);
    take(high, high, false, tight_high);
  }

  using Key = std::tuple<size_t, bool, bool>;
  Graph& graph_;
  const Magnitudes& m_;
  Vertex to_;
  std::map<Key, Vertex> whole_, fraction_;
};

void add_magnitudes(Graph& graph, Vertex from, const Magnitudes& m, Vertex to) {
  MagnitudeRules(graph, m, to).add(from);
}

/// Bounds on whole numbers become whole and closed.
void round_inwards(Magnitudes& m) {
  if (!m.low.fraction.empty() || m.low_open) m.low.whole = plus_one(m.low.whole);
  m.low.fraction.clear();
  m.low_open = false;
  if (m.high.fraction.empty() && m.high_open) {
    // One less: the largest number below a whole bound.
    std::string& digits = m.high.whole;
    size_t i = digits.size();
    while (i > 0 && digits[i - 1] == '0') digits[--i] = '9';
    if (i == 0) {  // below zero: nothing
      m.low.whole = "1";
      m.high.whole = "0";
    } else {
      --digits[i - 1];
      if (digits.size() > 1 && digits.front() == '0') digits.erase(0, 1);
    }
  }
  m.high.fraction.clear();
  m.high_open = false;
}

void add_signed(Graph& graph, Vertex from, const NumberBounds& bounds, bool whole_only,
                const Decimal& largest, const Decimal& largest_below_zero, Vertex to) {
  const auto add = [&](Vertex start, Magnitudes m) {
    m.whole_only = whole_only;
    if (whole_only) round_inwards(m);
    add_magnitudes(graph, start, m, to);
  };
  if (!bounds.high || !bounds.high->negative) {
    Magnitudes m{{}, bounds.high.value_or(largest), false, bounds.high && bounds.high_open};
    if (bounds.low && !bounds.low->negative) {
      m.low = *bounds.low;
      m.low_open = bounds.low_open;
    }
    add(from, m);
  }
  if (!bounds.low || bounds.low->negative) {
    const Vertex minus = graph.add_vertex();
    graph.byte(from, '-', minus);
    // Above zero in magnitude: there is no need for -0.
    Magnitudes m{{}, bounds.low.value_or(largest_below_zero), true, bounds.low && bounds.low_open};
    if (bounds.high && bounds.high->negative) {
      m.low = *bounds.high;
      m.low_open = bounds.high_open;
    }
    m.low.negative = m.high.negative = false;
    add(minus, m);
  }
}

void add_digits(Graph& graph, Vertex from, int min, int max, Vertex to) {
  for (int i = 0; i < max; ++i) {
    const Vertex next = graph.add_vertex();
    graph.bytes(from, '0', '9', next);
    if (i + 1 >= min) graph.jump(next, to);
    from = next;
  }
}

}  // namespace

Result<Decimal> read_decimal(const nlohmann::ordered_json& value) {
  if (value.is_number_integer()) return from_text(value.dump());
  if (!value.is_number())
    return make_error(Errc::unsupported, "must be a number of at most 64 bits");
  CEDAR_TRY(Decimal decimal, from_text(model::python_float(value.get<double>())));
  if (decimal.whole.size() > kMaxDigits || decimal.fraction.size() > kMaxDigits) {
    return make_error(Errc::unsupported, "has more than " + std::to_string(kMaxDigits) +
                                             " digits before or behind the point");
  }
  return decimal;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  return a.negative ? compare_magnitudes(b, a) : compare_magnitudes(a, b);
}

void add_integer(Graph& graph, Vertex from, const NumberBounds& bounds, Vertex to) {
  const Decimal largest{false, "9223372036854775807", ""};
  const Decimal largest_below_zero{true, "9223372036854775808", ""};
  add_signed(graph, from, bounds, true, largest, largest_below_zero, to);
}

void add_number(Graph& graph, Vertex from, const NumberBounds& bounds, Vertex to) {
  const Decimal largest{false, std::string(kMaxDigits, '9'), std::string(kMaxDigits, '9')};
  if (bounds.low || bounds.high) {
    return add_signed(graph, from, bounds, false, largest, largest, to);
  }
  const Vertex unsigned_part = graph.add_vertex(), whole = graph.add_vertex();
  graph.jump(from, unsigned_part);
  graph.byte(from, '-', unsigned_part);
  graph.byte(unsigned_part, '0', whole);
  const Vertex first = graph.add_vertex();
  graph.bytes(unsigned_part, '1', '9', first);
  graph.jump(first, whole);
  add_digits(graph, first, 1, static_cast<int>(kMaxDigits) - 1, whole);
  const Vertex point = graph.add_vertex(), before_exponent = graph.add_vertex();
  graph.byte(whole, '.', point);
  add_digits(graph, point, 1, static_cast<int>(kMaxFractionDigits), before_exponent);
  graph.jump(whole, before_exponent);
  graph.jump(before_exponent, to);
  const Vertex sign = graph.add_vertex(), digits = graph.add_vertex();
  graph.byte(before_exponent, 'e', sign);
  graph.byte(before_exponent, 'E', sign);
  graph.jump(sign, digits);
  graph.byte(sign, '+', digits);
  graph.byte(sign, '-', digits);
  add_digits(graph, digits, 1, 2, to);
}

}  // namespace cedar::engine::structured
