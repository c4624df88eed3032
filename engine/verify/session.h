#pragma once
// What all checks share: the model, the golden folder, engines in both behaviours, the report.

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engram_source.h"
#include "engine/forward.h"
#include "engine/sequence_runner.h"
#include "engine/upload.h"
#include "engine/verify/compare.h"
#include "engine/verify/golden_set.h"
#include "engine/verify/recorder.h"
#include "engine/verify/report.h"
#include "engine/verify/verify.h"
#include "model/tokenizer.h"

namespace cedar::engine::verify {

/// Who publishes index keys (the golden data's README): `published` is what an engine should do, `released`
/// reproduces a defect of the released code in single-token steps.
enum class Behaviour : uint8_t { published, released };
inline constexpr std::array kBehaviours = {Behaviour::published, Behaviour::released};
std::string to_string(Behaviour behaviour);

struct Prompt {
  std::string name;
  std::vector<TokenId> tokens;
  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
};

class Session {
 public:
  static Result<std::unique_ptr<Session>> create(std::shared_ptr<const LoadedModel> model,
                                                 const std::string& model_directory,
                                                 const std::string& golden_directory,
                                                 const VerifyOptions& options);

  const LoadedModel& model() const { return *model_; }
  const model::ModelConfig& config() const { return model_->config; }
  LayerId layer_count() const { return static_cast<LayerId>(model_->plan.layers.size()); }
  bool has_layer(LayerId layer) const { return layer >= 0 && layer < layer_count(); }
  const model::Tokenizer& tokenizer() const { return *tokenizer_; }
  /// Comparison numerics: index scores rounded as the reference rounds them.
  SequenceRunner& runner(Behaviour behaviour = Behaviour::published) {
    return *runners_[static_cast<size_t>(behaviour)];
  }
  kernels::KernelContext& ctx() { return runner().runtime().context(); }

  /// Of manifest.json, by length.
  const std::vector<Prompt>& prompts() const { return prompts_; }
  GoldenSet& golden() { return golden_; }
  Report& report() { return report_; }
  void progress(const std::string& group, const std::string& what) const {
    if (options_.progress) options_.progress(group, what);
  }

 private:
  explicit Session(GoldenSet golden) : golden_(std::move(golden)) {}
  Status read_prompts();

  std::shared_ptr<const LoadedModel> model_;
  std::shared_ptr<const model::Tokenizer> tokenizer_;
  std::array<std::unique_ptr<SequenceRunner>, kBehaviours.size()> runners_;
  VerifyOptions options_;
  GoldenSet golden_;
  Report report_;
  std::vector<Prompt> prompts_;
};

/// A sequence slot for the length of a scope.
class OpenSequence {
 public:
  static Result<OpenSequence> open(SequenceRunner& runner, int64_t max_tokens);
  OpenSequence(OpenSequence&& other) noexcept
      : runner_(std::exchange(other.runner_, nullptr)), slot_(other.slot_) {}
  OpenSequence& operator=(OpenSequence&&) = delete;
  ~OpenSequence() {
    if (runner_ != nullptr) runner_->close(slot_);
  }

  SequenceRunner& runner() const { return *runner_; }
  SequenceSlot slot() const { return slot_; }
  /// One step over `tokens`.
  Result<SequenceRunner::Output> run(std::vector<TokenId> tokens, bool every_row = false,
                                     ForwardObserver* observer = nullptr,
                                     std::vector<ImageRows> images = {}) const;

 private:
  OpenSequence(SequenceRunner& runner, SequenceSlot slot) : runner_(&runner), slot_(slot) {}
  SequenceRunner* runner_;
  SequenceSlot slot_;
};

/// Consecutive tokens of one sequence laid out as one step, to run pieces of the forward pass on recorded
/// inputs. Pieces share one SharedAttention, so a consumer finds what its owner published.
struct Frame {
  /// Positions [0, tokens.size()) of a fresh sequence. `engram` null: the model's tables.
  static Result<std::unique_ptr<Frame>> open(Session& session, const std::vector<TokenId>& tokens,
                                             EngramSource* engram = nullptr);
  Frame(Session& session, OpenSequence open_sequence, StepBatch step, EngramSource& engram);
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  SequenceStore& store() { return sequence.runner().store(); }
  kernels::KernelContext& ctx() { return sequence.runner().runtime().context(); }

  OpenSequence sequence;
  StepBatch batch;
  SharedAttention shared;
  Recorder recorder;
  Forward forward;
};

/// A copy of recorded values in the step's workspace, which the operations may overwrite.
/// REQUIRES: sizeof(T) is the tensor's element size.
template <class T>
T* input(kernels::KernelContext& ctx, const TensorView& view) {
  return upload(ctx, view.as<T>());
}
/// Values that operations left in the workspace. A device that cannot be read is lost: fatal, as in upload().
template <class T>
std::vector<T> output(kernels::KernelContext& ctx, const T* p, int64_t count) {
  const auto values = HostValues<T>::read(ctx, p, count);
  CEDAR_ASSERT(values.has_value(), values ? std::string() : values.error().message());
  return std::vector<T>(values->data(), values->data() + count);
}
inline std::vector<float> widened_output(kernels::KernelContext& ctx, const Bf16* p,
                                         int64_t count) {
  return widen(output(ctx, p, count).data(), count);
}

}  // namespace cedar::engine::verify
