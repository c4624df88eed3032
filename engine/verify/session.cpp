#include "engine/verify/session.h"

#include <algorithm>

#include "engine/request_checks.h"

namespace cedar::engine::verify {

std::string to_string(Behaviour behaviour) {
  return behaviour == Behaviour::published ? "published" : "released";
}

Result<std::unique_ptr<Session>> Session::create(std::shared_ptr<const LoadedModel> model,
                                                 const std::string& model_directory,
                                                 const std::string& golden_directory,
                                                 const VerifyOptions& options) {
  CEDAR_TRY(GoldenSet golden, GoldenSet::open(golden_directory));
  std::unique_ptr<Session> session(new Session(std::move(golden)));
  session->model_ = model;
  session->options_ = options;
  CEDAR_TRY(session->tokenizer_, model::Tokenizer::load(model_directory + "/tokenizer.json"));
  for (Behaviour behaviour : kBehaviours) {
    EngineOptions engine;
    engine.device = model->device;
    engine.threads = options.threads;
    engine.max_sequences = 1;
    engine.numeric.index_score = kernels::IndexScoreMode::bf16;
    engine.numeric.compat_stale_index_key = behaviour == Behaviour::released;
    auto& runner = session->runners_[static_cast<size_t>(behaviour)];
    CEDAR_TRY(runner, SequenceRunner::create(model, engine));
    runner->runtime().context().isa = options.isa;
  }
  CEDAR_CHECK_OK(session->read_prompts());
  return session;
}

Status Session::read_prompts() {
  if (!golden_.has_manifest()) return {};
  const nlohmann::json& manifest = golden_.manifest();
  if (!manifest.is_object() || !manifest.contains("prompts") || !manifest["prompts"].is_object()) {
    return make_error(Errc::invalid_argument, "manifest.json: expected an object named prompts");
  }
  for (const auto& [name, ids] : manifest["prompts"].items()) {
    Prompt prompt;
    prompt.name = name;
    CEDAR_TRY(prompt.tokens, token_array(ids, "manifest.json: prompts." + name));
    CEDAR_CHECK_OK(check_prompt(config(), prompt.tokens));
    prompts_.push_back(std::move(prompt));
  }
  std::stable_sort(prompts_.begin(), prompts_.end(),
                   [](const Prompt& a, const Prompt& b) { return a.length() < b.length(); });
  return {};
}

Result<OpenSequence> OpenSequence::open(SequenceRunner& runner, int64_t max_tokens) {
  CEDAR_TRY(const SequenceSlot slot, runner.open(max_tokens));
  return OpenSequence(runner, slot);
}

Result<SequenceRunner::Output> OpenSequence::run(std::vector<TokenId> tokens, bool every_row,
                                                 ForwardObserver* observer,
                                                 std::vector<ImageRows> images) const {
  SequenceRunner::Chunk chunk;
  chunk.slot = slot_;
  chunk.tokens = std::move(tokens);
  chunk.images = std::move(images);
  chunk.every_row = every_row;
  CEDAR_TRY(std::vector<SequenceRunner::Output> outputs, runner_->run({chunk}, observer));
  return std::move(outputs.front());
}

Frame::Frame(Session& session, OpenSequence open_sequence, StepBatch step, EngramSource& engram)
    : sequence(std::move(open_sequence)),
      batch(std::move(step)),
      forward(session.model(), store(), engram, sequence.runner().options().numeric, ctx(),
              &recorder) {}

Result<std::unique_ptr<Frame>> Frame::open(Session& session, const std::vector<TokenId>& tokens,
                                           EngramSource* engram) {
  SequenceRunner& runner = session.runner();
  const auto rows = static_cast<int64_t>(tokens.size());
  CEDAR_TRY(OpenSequence sequence, OpenSequence::open(runner, rows));
  runner.runtime().begin_step();
  StepBatch batch =
      make_step_batch(runner.runtime().context(), session.model(), runner.store(),
                      {make_sequence(session.model(), sequence.slot(), tokens, 0, rows)});
  return std::make_unique<Frame>(session, std::move(sequence), std::move(batch),
                                 engram != nullptr ? *engram : runner.engram());
}

}  // namespace cedar::engine::verify
