#include "engine/verify/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

namespace cedar::engine::verify {
namespace {

std::string number(double value) {
  char text[32];
  if (!std::isfinite(value)) return "-";
  const bool whole = value == std::floor(value) && value < 1e6;
  std::snprintf(text, sizeof text, whole ? "%.0f" : "%.2e", value);
  return text;
}

const char* measure_name(Measure measure) {
  switch (measure) {
    case Measure::different: return "values differing";
    case Measure::relative_l2: return "relative L2";
    case Measure::bf16_steps: return "bf16 steps";
    case Measure::share: return "share differing";
  }
  return "";
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}
std::string right(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

void add_list(std::string& out, const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  out += std::string("\n") + title + "\n";
  for (const std::string& line : lines) out += "  " + line + "\n";
}

}  // namespace

KindResult& Report::result(const Kind& kind) {
  for (KindResult& known : kinds_) {
    if (known.kind.name == kind.name) return known;
  }
  kinds_.push_back({kind, 0, 0, 0, {}, {}, {}});
  return kinds_.back();
}

void Report::check(const Kind& kind, double value, const std::string& what,
                   const std::string& detail) {
  KindResult& r = result(kind);
  // Written so that NaN fails.
  const bool passed = value <= kind.limit;
  ++(passed ? r.passed : r.failed);
  if (r.worst_case.empty() || !(value <= r.worst)) {
    r.worst = std::isnan(value) ? std::numeric_limits<double>::infinity() : value;
    r.worst_case = what;
  }
  if (!passed && r.failures.size() < kMaxFailures) {
    r.failures.push_back(what + ": " + number(value) + " " + measure_name(kind.measure) +
                         ", limit " + number(kind.limit) + (detail.empty() ? "" : "; " + detail));
  }
}

void Report::fail(const Kind& kind, const std::string& what, const std::string& reason) {
  check(kind, std::numeric_limits<double>::infinity(), what, reason);
}

void Report::note(const Kind& kind, const std::string& text) { result(kind).notes.push_back(text); }

void Report::skip(std::string what, std::string reason) {
  skipped_.push_back({std::move(what), std::move(reason)});
}

int64_t Report::passed() const {
  int64_t n = 0;
  for (const KindResult& r : kinds_) n += r.passed;
  return n;
}

int64_t Report::failed() const {
  int64_t n = 0;
  for (const KindResult& r : kinds_) n += r.failed;
  return n;
}

const KindResult* Report::find(std::string_view name) const {
  const auto found = std::find_if(kinds_.begin(), kinds_.end(),
                                  [&](const KindResult& r) { return r.kind.name == name; });
  return found == kinds_.end() ? nullptr : &*found;
}

std::string Report::text() const {
  std::string out = padded("kind", 30) + right("passed", 7) + right("failed", 7) +
                    right("worst", 11) + right("limit", 10) + "  measure           worst case\n";
  std::vector<std::string> failures, notes, skips;
  for (const KindResult& r : kinds_) {
    const std::string name(r.kind.name);
    out += padded(name, 30) + right(std::to_string(r.passed), 7) +
           right(std::to_string(r.failed), 7) + right(number(r.worst), 11) +
           right(number(r.kind.limit), 10) + "  " + padded(measure_name(r.kind.measure), 18) +
           r.worst_case + "\n";
    for (const std::string& failure : r.failures) failures.push_back(name + " " + failure);
    const auto hidden = r.failed - static_cast<int64_t>(r.failures.size());
    if (hidden > 0) failures.push_back(name + " and " + std::to_string(hidden) + " more");
    for (const std::string& note : r.notes) notes.push_back(name + " " + note);
  }
  for (const Skipped& s : skipped_) skips.push_back(s.what + ": " + s.reason);
  add_list(out, "excused:", notes);
  add_list(out, "skipped:", skips);
  add_list(out, "failed:", failures);
  return out + "\n" + std::to_string(passed()) + " passed, " + std::to_string(failed()) +
         " failed\n";
}

std::string Report::json() const {
  nlohmann::ordered_json out;
  out["passed"] = passed();
  out["failed"] = failed();
  out["kinds"] = nlohmann::ordered_json::array();
  for (const KindResult& r : kinds_) {
    nlohmann::ordered_json kind;
    kind["name"] = r.kind.name;
    kind["measure"] = measure_name(r.kind.measure);
    kind["limit"] = r.kind.limit;
    kind["passed"] = r.passed;
    kind["failed"] = r.failed;
    kind["worst"] = r.worst;  // written as null when infinite
    kind["worst_case"] = r.worst_case;
    kind["failures"] = r.failures;
    kind["excused"] = r.notes;
    out["kinds"].push_back(std::move(kind));
  }
  out["skipped"] = nlohmann::ordered_json::array();
  for (const Skipped& s : skipped_) {
    out["skipped"].push_back({{"what", s.what}, {"reason", s.reason}});
  }
  // Invalid UTF-8 can only come from a damaged golden file; it must not stop the report.
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace cedar::engine::verify
