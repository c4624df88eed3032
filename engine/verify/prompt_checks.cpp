// A trained checkpoint's prompts.json: ids of the text, greedy answers, drafts, first and last logits.

#include <algorithm>

#include "engine/verify/checks.h"
#include "engine/verify/runs.h"
#include "model/strict_json.h"

namespace cedar::engine::verify {
namespace {

using nlohmann::json;

/// Below this gap between the two best logits another rounding may choose the other one: the noise between
/// correct implementations is about 0.2 (the golden data's README).
constexpr double kSafeGap = 0.5;
/// The same for a draft's guess. Its logits pass the drafter's quantised layers too, and are larger in a
/// trained model: on the demo model close guesses are up to 1.7 apart.
constexpr double kSafeDraftGap = 2.0;

struct Record {
  std::string name;
  std::string prompt;
  std::string text;
  std::vector<TokenId> ids, greedy;
  std::vector<double> gaps;                  // of each greedy token
  std::vector<std::vector<TokenId>> drafts;  // after greedy token i was fed
  std::vector<std::vector<float>> confidence;
  bool must_match = false;  // a record was asked for: every id counts, whatever its gap
};

Record parse_record(const json& entry) {
  Record r;
  r.name = entry.at("name").get<std::string>();
  r.prompt = entry.at("prompt").get<std::string>();
  r.text = entry.at("text").get<std::string>();
  r.ids = entry.at("ids").get<std::vector<TokenId>>();
  r.greedy = entry.at("greedy").get<std::vector<TokenId>>();
  r.gaps = entry.at("gaps").get<std::vector<double>>();
  r.drafts = entry.value("drafts", r.drafts);
  r.confidence = entry.value("confidence", r.confidence);
  r.must_match = entry.contains("want") && !entry["want"].is_null();
  return r;
}

/// Logits of a whole run. A router whose two experts nearly tie sends a correct run to either side, which in a
/// trained model moves logits by more than the general limit. The folder records how far the reference is from
/// itself on two ways to the same row; two implementations may each be that far from the exact value.
Kind prompt_logits_kind(const json& consistency) {
  Kind kind = kPromptLogits;
  if (!consistency.is_object()) return kind;
  static const json::json_pointer kSpread("/summary/published/max_rel_l2");
  const json spread = consistency.contains(kSpread) ? consistency.at(kSpread) : json();
  if (spread.is_number()) kind.limit = std::max(kind.limit, 2 * spread.get<double>());
  return kind;
}

class RecordRun {
 public:
  RecordRun(Session& session, const Record& record) : session_(session), record_(record) {}

  void run() {
    Report& report = session_.report();
    report.check(kPromptIds,
                 count_different(session_.tokenizer().encode(record_.prompt), record_.ids),
                 record_.name);
    if (record_.greedy.empty() || record_.gaps.size() != record_.greedy.size()) {
      return report.fail(kPromptGreedy, record_.name, "greedy and gaps differ in length");
    }
    if (Status status = answer(); !status) {
      return report.fail(kPromptGreedy, record_.name, status.error());
    }
    finish();
  }

 private:
  /// Tokens that were fed: all but the end of the answer.
  int64_t fed() const {
    const bool ended = record_.greedy.back() == session_.config().eos_token_id;
    return std::ssize(record_.greedy) - (ended ? 1 : 0);
  }

  Result<OpenSequence> open() {
    return OpenSequence::open(session_.runner(),
                              std::ssize(record_.ids) + std::ssize(record_.greedy));
  }

  /// Feeds the recorded ids, so that one different choice does not hide the steps behind it.
  Status answer() {
    CEDAR_TRY(const OpenSequence sequence, open());
    CEDAR_TRY(SequenceRunner::Output output, sequence.run(record_.ids));
    first_ = output.logits.back();
    choose(0, first_);
    for (int64_t i = 0; i < fed(); ++i) {
      const auto at = static_cast<size_t>(i);
      CEDAR_TRY(output, sequence.run({record_.greedy[at]}));
      if (i + 1 < std::ssize(record_.greedy)) choose(at + 1, output.logits.back());
      if (at >= record_.drafts.size() || record_.drafts[at].empty()) continue;
      // The draft follows the backbone's choice as it was recorded.
      const TokenId next = record_.drafts[at].front();
      CEDAR_TRY(const Draft draft, sequence.runner().draft(sequence.slot(), next));
      check_draft(at, draft);
    }
    last_ = output.logits.back();
    return {};
  }

  void choose(size_t step, const std::vector<float>& logits) {
    const TokenId token = best_token(logits);
    chosen_.push_back(token);
    if (token == record_.greedy[step]) return;
    const bool excused = !record_.must_match && record_.gaps[step] < kSafeGap;
    ++(excused ? excused_ids_ : wrong_ids_);
  }

  void check_draft(size_t step, const Draft& draft) {
    const std::vector<TokenId>& recorded = record_.drafts[step];
    const std::string what = record_.name + " step " + std::to_string(step);
    if (recorded.size() != draft.tokens.size() + 1) {
      return session_.report().fail(kPromptDrafts, what, "drafts of another length are recorded");
    }
    for (size_t k = 0; k < draft.tokens.size(); ++k) {
      // Behind a different guess nothing is comparable: each guess follows the one before.
      if (draft.tokens[k] != recorded[k + 1]) return judge_guess(what, draft, k, recorded[k + 1]);
    }
    session_.report().check(kPromptDrafts, 0, what);
    if (step >= record_.confidence.size()) return;
    const std::vector<float>& confidence = record_.confidence[step];
    found_confidence_.insert(found_confidence_.end(), draft.confidence.begin(),
                             draft.confidence.end());
    confidence_.insert(confidence_.end(), confidence.begin(), confidence.end());
  }

  void judge_guess(const std::string& what, const Draft& draft, size_t k, TokenId recorded) {
    const std::vector<float>& logits = draft.logits[k];
    const bool inside = recorded >= 0 && recorded < std::ssize(logits);
    const double gap = inside ? static_cast<double>(logits[static_cast<size_t>(draft.tokens[k])]) -
                                    static_cast<double>(logits[static_cast<size_t>(recorded)])
                              : kSafeDraftGap;
    const bool excused = gap < kSafeDraftGap;
    session_.report().check(kPromptDrafts, excused ? 0 : 1, what,
                            "guess " + std::to_string(k) + " scores " + std::to_string(gap) +
                                " above the recorded one");
    if (!excused) return;
    ++close_drafts_;
    largest_gap_ = std::max(largest_gap_, gap);
  }

  void check_logits(const std::string& which, const std::vector<float>& found) {
    GoldenFile* file = session_.golden().file("logits");
    if (file == nullptr) return;
    const std::string name = record_.name + "." + which;
    const TensorView* view = file->tensor(name, DType::f32, {session_.config().vocab_size});
    if (view == nullptr) return;
    session_.report().check(prompt_logits_kind(session_.golden().consistency()),
                            relative_l2(found, floats(*view)), name);
  }

  void finish() {
    Report& report = session_.report();
    report.check(kPromptGreedy, static_cast<double>(wrong_ids_), record_.name);
    if (excused_ids_ > 0) {
      report.note(kPromptGreedy, record_.name + ": " + std::to_string(excused_ids_) +
                                     " ids differ where the recorded gap is below 0.5");
    } else {
      report.check(kPromptText, session_.tokenizer().decode(chosen_) == record_.text ? 0 : 1,
                   record_.name);
    }
    if (close_drafts_ > 0) {
      report.note(kPromptDrafts, record_.name + ": " + std::to_string(close_drafts_) + " of " +
                                     std::to_string(record_.drafts.size()) +
                                     " drafts guess another token that scores at most " +
                                     std::to_string(largest_gap_) + " higher");
    }
    if (!confidence_.empty()) {
      report.check(kPromptConfidence, relative_l2(found_confidence_, confidence_), record_.name);
    }
    check_logits("last_logits", first_);
    check_logits("end_logits", last_);
  }

  Session& session_;
  const Record& record_;
  std::vector<TokenId> chosen_;
  std::vector<float> first_, last_;  // logits behind the prompt, and behind the last token fed
  std::vector<float> found_confidence_, confidence_;
  int64_t wrong_ids_ = 0, excused_ids_ = 0, close_drafts_ = 0;
  double largest_gap_ = 0;
};

}  // namespace

void check_prompts(Session& session) {
  if (!session.golden().has_prompts()) return;
  Report& report = session.report();
  if (!session.golden().prompts().is_array()) {
    return report.fail(kPromptIds, "prompts.json", "expected an array of records");
  }
  if (session.golden().file("logits") == nullptr) {
    report.skip("prompts.logits", "logits.safetensors is absent");
  }
  for (const json& entry : session.golden().prompts()) {
    Record record;
    try {
      record = parse_record(entry);
    } catch (const json::exception& error) {
      report.fail(kPromptIds, "prompts.json", model::json_problem(error));
      continue;
    }
    session.progress("prompts", record.name);
    if (!record.drafts.empty() && !session.model().drafter) {
      report.fail(kPromptDrafts, record.name, "the checkpoint has no drafter");
      record.drafts.clear();
    }
    RecordRun(session, record).run();
  }
}

}  // namespace cedar::engine::verify
