// A trained checkpoint's prompts.json: ids of the text, greedy answers, drafts, first and last logits.

#include <algorithm>

#include "engine/verify/checks.h"
#include "engine/verify/runs.h"

namespace cedar::engine::verify {
namespace {

using nlohmann::json;

/// Below this gap between the two best logits another rounding may choose the other one: the noise between
/// correct implementations is about 0.2 (the golden data's README).
constexpr double kSafeGap = 0.5;

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
    const auto room = std::ssize(record_.ids) + std::ssize(record_.greedy);
    auto sequence = OpenSequence::open(session_.runner(), room);
    if (!sequence) return report.fail(kPromptGreedy, record_.name, sequence.error());
    if (Status status = answer(*sequence); !status) {
      return report.fail(kPromptGreedy, record_.name, status.error());
    }
    finish();
  }

 private:
  int64_t fed() const {
    const bool ended = record_.greedy.back() == session_.config().eos_token_id;
    return std::ssize(record_.greedy) - (ended ? 1 : 0);
  }

  /// Feeds the recorded ids, so that one different choice does not hide the steps behind it.
  Status answer(const OpenSequence& sequence) {
    CEDAR_TRY(SequenceRunner::Output output, sequence.run(record_.ids));
    check_logits("last_logits", output.logits.back());
    choose(0, output.logits.back());
    for (int64_t i = 0; i < fed(); ++i) {
      CEDAR_TRY(output, sequence.run({record_.greedy[static_cast<size_t>(i)]}));
      const bool last = i + 1 == std::ssize(record_.greedy);
      if (!last) choose(i + 1, output.logits.back());
      if (i < std::ssize(record_.drafts)) {
        // The draft follows the backbone's choice as it was recorded.
        const TokenId next = record_.drafts[static_cast<size_t>(i)].empty()
                                 ? best_token(output.logits.back())
                                 : record_.drafts[static_cast<size_t>(i)].front();
        CEDAR_TRY(const Draft draft, sequence.runner().draft(sequence.slot(), next));
        check_draft(i, draft, best_token(output.logits.back()));
      }
      if (i + 1 == fed()) check_logits("end_logits", output.logits.back());
    }
    return {};
  }

  void choose(int64_t step, const std::vector<float>& logits) {
    const auto at = static_cast<size_t>(step);
    const TokenId token = best_token(logits);
    chosen_.push_back(token);
    if (token == record_.greedy[at]) return;
    if (record_.must_match || record_.gaps[at] >= kSafeGap) {
      ++wrong_;
    } else {
      ++excused_;
    }
  }

  void check_draft(int64_t step, const Draft& draft, TokenId next) {
    const auto at = static_cast<size_t>(step);
    std::vector<TokenId> found = {next};
    found.insert(found.end(), draft.tokens.begin(), draft.tokens.end());
    // A record whose answer has no clear gaps has no clear drafts either.
    const bool clear = record_.must_match ||
                       *std::min_element(record_.gaps.begin(), record_.gaps.end()) >= kSafeGap;
    const double different = count_different(found, record_.drafts[at]);
    if (clear) {
      session_.report().check(kPromptDrafts, different,
                              record_.name + " step " + std::to_string(step));
    } else if (different > 0) {
      ++unclear_drafts_;
    }
    if (at < record_.confidence.size() && different == 0) {
      found_confidence_.insert(found_confidence_.end(), draft.confidence.begin(),
                               draft.confidence.end());
      const std::vector<float>& recorded = record_.confidence[at];
      confidence_.insert(confidence_.end(), recorded.begin(), recorded.end());
    }
  }

  void check_logits(const std::string& which, const std::vector<float>& logits) {
    GoldenFile* file = session_.golden().file("logits");
    if (file == nullptr) return;
    const std::string name = record_.name + "." + which;
    const TensorView* expected = file->tensor(name, DType::f32, {session_.config().vocab_size});
    if (expected == nullptr) return;
    session_.report().check(kPromptLogits, relative_l2(logits, floats(*expected)), name);
  }

  void finish() {
    Report& report = session_.report();
    report.check(kPromptGreedy, static_cast<double>(wrong_), record_.name);
    if (excused_ > 0) {
      report.note(kPromptGreedy, record_.name + ": " + std::to_string(excused_) +
                                     " ids differ where the recorded gap is below 0.5");
    }
    if (unclear_drafts_ > 0) {
      report.note(kPromptDrafts, record_.name + ": " + std::to_string(unclear_drafts_) +
                                     " drafts differ in an answer with gaps below 0.5");
    }
    if (excused_ == 0) {
      report.check(kPromptText, session_.tokenizer().decode(chosen_) == record_.text ? 0 : 1,
                   record_.name);
    }
    if (!confidence_.empty()) {
      report.check(kPromptConfidence, relative_l2(found_confidence_, confidence_), record_.name);
    }
  }

  Session& session_;
  const Record& record_;
  std::vector<TokenId> chosen_;
  std::vector<float> found_confidence_, confidence_;
  int64_t wrong_ = 0, excused_ = 0, unclear_drafts_ = 0;
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
      report.fail(kPromptIds, "prompts.json", error.what());
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
