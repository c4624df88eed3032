#pragma once
// The writing half: takes over finished prompts, replays their last rows through the decoder layers, then
// decodes all sequences together, one ragged batch a step. Owns pages, windows and sampling state.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "engine/engram_source.h"
#include "engine/handoff.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/sampling.h"

namespace cedar::engine {

struct DecodeRequest {
  RequestId id;
  std::vector<TokenId> prompt;
  /// Output that another engine has sampled already: this one goes on behind it, as if it had been its own.
  std::vector<TokenId> emitted;
  SamplingParams sampling;
  int64_t max_new_tokens = 1;     // > emitted.size(), which it includes
  std::vector<TokenId> stop_ids;  // besides EOS
  bool ignore_eos = false;
  std::string constraint;  // to_text() of structured/output_rules.h; empty: none
};

/// What a prefill has to read for it: prompt and emitted tokens.
std::vector<TokenId> tokens_to_read(const DecodeRequest& request);

enum class FinishReason : uint8_t { none, stop, length, cancelled, failed };

struct TokenEvent {
  RequestId id;
  int64_t index = 0;  // 0-based output index
  SampledToken token;
  FinishReason finish = FinishReason::none;  // set on the last event of a request
  std::optional<Error> error;                // finish == failed; then `token` is meaningless
};

struct StepStats {
  int64_t replay_rows = 0;
  int64_t decode_rows = 0;
  bool replayed = false;   // GPU: as recorded launches
  int64_t whole_rows = 0;  // rows whose logits were all looked at by the host
  double seconds = 0;
};

struct DecodeLoad {
  int32_t sequences = 0;
  int32_t free_slots = 0;
  int64_t free_blocks = 0;
  int64_t total_blocks = 0;
};

/// One thread drives one engine.
class DecodeEngine {
 public:
  static Result<std::unique_ptr<DecodeEngine>> create(std::shared_ptr<const LoadedModel> model,
                                                      std::shared_ptr<EngramSource> engram,
                                                      const EngineOptions& options);
  ~DecodeEngine();

  /// Takes a slot and the pages of prompt + max_new_tokens. The blocks and the state to import are those of
  /// tokens_to_read(). Errors: context_too_long naming need and
  /// capacity, overloaded (no room now), invalid_argument, unsupported (a constraint that does not compile, or
  /// an engine without Constraints).
  Status reserve(DecodeRequest request);
  /// Copies a finished block (host memory) into its page. REQUIRES: reserve(id); blocks may come in any order.
  Status import_block(RequestId id, int64_t index, std::span<const std::byte> bytes);
  /// All blocks are in: the sequence joins the next step.
  Status start(RequestId id, Handoff handoff);
  /// Frees everything; no further events. Unknown ids are ignored. Between steps only.
  void cancel(RequestId id);

  /// Called from inside step() with every KV block that tokens of an answer complete, in host memory that is valid
  /// during the call, before the request's last event frees it. The block covers tokens [index, index + 1) * block tokens
  /// of prompt and answer.
  using BlockSink =
      std::function<void(RequestId id, int64_t index, std::span<const std::byte> bytes)>;
  void on_block(BlockSink sink);

  bool idle() const;
  /// One ragged batch: replay rows of started requests, one row of every decoding sequence.
  Result<std::vector<TokenEvent>> step();
  StepStats last_step() const;
  DecodeLoad load() const;
  const LoadedModel& model() const;
  /// Of a block, and of a hand-off state as engine/handoff.h serialises it.
  int64_t block_bytes() const;
  int64_t max_handoff_bytes() const;

 private:
  DecodeEngine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::engine
