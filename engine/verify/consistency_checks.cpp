// Prefill of n tokens against prefill of n - k and k single steps. The recorded figures are the reference's
// own differences; this engine's kernels give a row the same bits in any batch, so it owes equality.

#include <bit>

#include "engine/verify/checks.h"

namespace cedar::engine::verify {
namespace {

Result<std::vector<float>> last_logits(Session& session, const std::vector<TokenId>& tokens,
                                       int64_t single_steps) {
  CEDAR_TRY(const OpenSequence sequence, OpenSequence::open(session.runner(), std::ssize(tokens)));
  const auto split = tokens.end() - single_steps;
  CEDAR_TRY(SequenceRunner::Output output, sequence.run({tokens.begin(), split}));
  for (auto token = split; token != tokens.end(); ++token) {
    CEDAR_TRY(output, sequence.run({*token}));
  }
  return std::move(output.logits.back());
}

void check_case(Session& session, const std::vector<TokenId>& tokens, int64_t k) {
  const std::string what =
      "n " + std::to_string(tokens.size()) + ", " + std::to_string(k) + " steps";
  Report& report = session.report();
  if (k < 1 || k >= std::ssize(tokens)) {
    return report.fail(kConsistency, what, "the number of steps must be in [1, n)");
  }
  const auto whole = last_logits(session, tokens, 0);
  if (!whole) return report.fail(kConsistency, what, whole.error());
  const auto stepped = last_logits(session, tokens, k);
  if (!stepped) return report.fail(kConsistency, what, stepped.error());
  int64_t different = 0;
  for (size_t i = 0; i < whole->size(); ++i) {
    const bool same =
        std::bit_cast<uint32_t>((*whole)[i]) == std::bit_cast<uint32_t>((*stepped)[i]);
    different += same ? 0 : 1;
  }
  report.check(kConsistency, static_cast<double>(different), what);
}

}  // namespace

void check_consistency(Session& session) {
  const nlohmann::json& root = session.golden().consistency();
  if (root.is_null()) return session.report().skip("consistency", "consistency.json is absent");
  if (!root.is_object() || !root.contains("cases") || !root["cases"].is_array()) {
    return session.report().fail(kConsistency, "consistency.json", "expected an array named cases");
  }
  size_t index = 0;
  for (const nlohmann::json& entry : root["cases"]) {
    const std::string what = "cases[" + std::to_string(index++) + "]";
    session.progress("consistency", what);
    if (!entry.is_object() || !entry.contains("ids") || !entry.contains("k") ||
        !entry["k"].is_number_integer()) {
      session.report().fail(kConsistency, what, "expected an object with ids and k");
      continue;
    }
    const auto tokens = token_array(entry["ids"], what + ".ids");
    if (!tokens) {
      session.report().fail(kConsistency, what, tokens.error());
    } else {
      check_case(session, *tokens, entry["k"].get<int64_t>());
    }
  }
}

}  // namespace cedar::engine::verify
