#pragma once
// What verification found: per kind how many comparisons passed and failed and the worst of them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "engine/verify/kinds.h"

namespace cedar::engine::verify {

struct KindResult {
  Kind kind;
  int64_t passed = 0;
  int64_t failed = 0;
  double worst = 0;                   // infinite where a comparison could not be made
  std::string worst_case;             // which comparison gave `worst`
  std::vector<std::string> failures;  // the first kMaxFailures, with their values
  std::vector<std::string> notes;     // differences that the rules excuse, and why
};

struct Skipped {
  std::string what;
  std::string reason;
};

class Report {
 public:
  static constexpr size_t kMaxFailures = 8;

  /// Passes when value <= kind.limit. `what` names the tensor or case; `detail` is shown on failure.
  void check(const Kind& kind, double value, const std::string& what,
             const std::string& detail = {});
  /// A comparison that could not be made because the engine or the data refused.
  void fail(const Kind& kind, const std::string& what, const std::string& reason);
  void fail(const Kind& kind, const std::string& what, const Error& error) {
    fail(kind, what, error.message());
  }
  /// Something that passed only by a rule: shown, not counted.
  void note(const Kind& kind, const std::string& text);
  void skip(std::string what, std::string reason);

  const std::vector<KindResult>& kinds() const { return kinds_; }
  const std::vector<Skipped>& skipped() const { return skipped_; }
  int64_t passed() const;
  int64_t failed() const;
  /// Null when nothing of that kind was compared.
  const KindResult* find(std::string_view name) const;

  /// A table of the kinds, what was skipped, the failures, and `N passed, N failed` as the last line.
  std::string text() const;
  /// The same figures for programs; an infinite or missing figure is null.
  std::string json() const;

 private:
  KindResult& result(const Kind& kind);
  std::vector<KindResult> kinds_;  // in the order of their first comparison
  std::vector<Skipped> skipped_;
};

}  // namespace cedar::engine::verify
