#pragma once
// A range of all layers, and what sequences hold there while they are written: one of the engines of a decoder pipeline.
// The first embeds, the one that has the boundary layer lets the rows join that are replayed from the hand-off, the last
// makes logits. What goes between two is engine/layer_cut.h; every rank keeps the global rows of all sources that come
// before its end, so that any of its layers finds what it reads.
//
// Steps of one sequence run in the same order in every rank. The rank that makes the steps decides what fits.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engram_source.h"
#include "engine/handoff.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "kernels/kernel_context.h"

namespace cedar::engine {

/// Rows of one sequence in a step.
struct DecodeRows {
  RequestId id;
  Position start = 0;  // of the first row
  bool replay =
      false;  // the prompt's last rows, from the boundary layer on; else one new token through all layers
  bool ends_replay = false;      // the prompt's last row is among them
  std::vector<TokenId> tokens;   // of the rows
  std::vector<TokenId> history;  // before them, oldest first
};

/// Those with a new token come first.
struct DecodeChunk {
  std::vector<DecodeRows> parts;
  int64_t rows() const;
};

class DecodeRank {
 public:
  /// The layers that `model` holds, of the decoder role or all. Errors: invalid_argument, and those of the pools.
  static Result<std::unique_ptr<DecodeRank>> create(std::shared_ptr<const LoadedModel> model,
                                                    std::shared_ptr<EngramSource> engram,
                                                    const EngineOptions& options);
  ~DecodeRank();

  bool first() const;
  bool last() const;

  /// A slot, and pages for `tokens` tokens, of which `read` were read. Errors: context_too_long, overloaded,
  /// invalid_argument (known already).
  Status open(RequestId id, Position read, int64_t tokens);
  bool knows(RequestId id) const;
  std::vector<RequestId> sequences() const;
  /// Copies a block (host memory) into its page. REQUIRES: not started. Errors: not_found, invalid_argument.
  Status import_block(RequestId id, int64_t index, std::span<const std::byte> bytes);
  /// All blocks are in; takes over what this rank needs of the state. Errors: not_found, invalid_argument.
  Status start(RequestId id, Handoff handoff);
  /// Between steps. Unknown ids are ignored.
  void release(RequestId id);

  /// Runs one step and returns how many bytes of `out` the next rank needs of it. As PrefillRank::run().
  Result<int64_t> run(const DecodeChunk& chunk, std::span<const std::byte> in,
                      std::span<std::byte> out);
  int64_t max_in_bytes() const;
  int64_t max_out_bytes() const;

  /// Whose next token the last step decides, in the order of their logits. At the last rank.
  const std::vector<RequestId>& decided() const;
  /// [decided(), vocab] on the device, until the next step.
  const float* logits() const;
  kernels::KernelContext& context();

  int64_t block_bytes() const;
  int64_t max_handoff_bytes() const;
  int32_t free_slots() const;
  int64_t free_blocks() const;
  int64_t total_blocks() const;
  const EngineOptions& options() const;  // completed
  const LoadedModel& model() const;

 private:
  DecodeRank();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::engine
