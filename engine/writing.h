#pragma once
// A sequence that is being written, as far as its tokens go: what was read and sampled, what ends it, what constrains it.
// Knows nothing of pages and layers.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/decode_engine.h"
#include "engine/structured/constraints.h"
#include "kernels/kernel_context.h"

namespace cedar::engine {

struct Writing {
  DecodeRequest request;
  std::vector<TokenId> tokens;                          // prompt and output
  std::vector<TokenId> stop_ids;                        // EOS first
  std::optional<structured::OutputState> output_state;  // of a constrained request

  /// Tokens that the encoder has read.
  Position read_length() const {
    return static_cast<Position>(request.prompt.size() + request.emitted.size());
  }
  std::span<const TokenId> output() const {
    return std::span<const TokenId>(tokens).subspan(request.prompt.size());
  }
};

/// Whether the request makes sense for this model and these options. Errors: as DecodeEngine::reserve(), but for room.
Status check_decode_request(const model::ModelConfig& config, const EngineOptions& options,
                            const DecodeRequest& request);

/// A checked request at its beginning. Errors: unsupported, invalid_argument (a constraint).
Result<Writing> begin_writing(const model::ModelConfig& config, const EngineOptions& options,
                              DecodeRequest request);

struct WrittenTokens {
  std::vector<TokenEvent> events;  // one a sequence, in order
  int64_t whole_rows = 0;          // rows that were sampled from all their logits
};
/// Samples the next token of each sequence and takes it over. `logits`: [sequences, vocab] on the context's device.
Result<WrittenTokens> write_tokens(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                   const float* logits, std::span<Writing* const> sequences);

}  // namespace cedar::engine
