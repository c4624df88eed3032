#pragma once
// A range of the encoder layers, and what its prompts hold there: one of the engines of a pipeline, or the only one. The
// first embeds; the last projects the decoder's global KV, and has every block whole and the state to hand over, because
// what earlier ones wrote goes along with the rows (engine/layer_cut.h).
//
// Chunks run in the same order in every rank. Which prompts fit is decided where the chunks are made; a rank takes a slot
// and pages when a prompt's first rows come, and refuses what it cannot hold.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engram_source.h"
#include "engine/handoff.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/prefill_chunk.h"
#include "engine/resume_point.h"

namespace cedar::engine {

/// One thread drives one rank.
class PrefillRank {
 public:
  /// The encoder layers that `model` holds. Errors: invalid_argument when it holds none, and those of the pools.
  static Result<std::unique_ptr<PrefillRank>> create(std::shared_ptr<const LoadedModel> model,
                                                     std::shared_ptr<EngramSource> engram,
                                                     const EngineOptions& options);
  ~PrefillRank();

  bool first() const;
  bool last() const;

  /// A slot and all pages of a prompt. Errors: context_too_long (can never fit; names need and capacity), overloaded (no
  /// room now), invalid_argument (known already).
  Status open(RequestId id, Position length, int64_t cached_blocks = 0, bool keep_windows = false);
  /// As PrefillEngine has them; resume() returns where to go on. REQUIRES: all layers are here.
  Status import_block(RequestId id, int64_t index, std::span<const std::byte> bytes);
  Status import_windows(RequestId id, Handoff state);
  Result<ResumePoint> resume(RequestId id, int64_t blocks);
  std::vector<RequestId> prompts() const;
  /// Frees slot and pages; between chunks. Unknown ids are ignored.
  void release(RequestId id);

  /// Runs one chunk and returns how many bytes of `out` the next rank needs of it. `in`: those of the rank before; none at
  /// the first. `out`: max_out_bytes(); none at the last. Prompts whose first row comes are opened. Errors:
  /// invalid_argument (bytes or rows that do not follow what came before), those of open(), and the device's.
  Result<int64_t> run(const PrefillChunk& chunk, const ChunkImages& images,
                      std::span<const std::byte> in, std::span<std::byte> out);
  /// Asks for the Engram rows of a chunk that will run, where they come from elsewhere. Never waits. Any chunk is safe.
  void prefetch(const PrefillChunk& chunk);
  int64_t max_in_bytes() const;
  int64_t max_out_bytes() const;

  /// Leading blocks of a prompt whose rows are all written; the last, open one included once the prompt is read.
  int64_t blocks_ready(RequestId id) const;
  /// How a prompt was entered.
  const ResumePoint& entry(RequestId id) const;
  /// Where the state of a prompt is kept for the next turn, if a chunk ends there; 0: nowhere. A rank that lacks layers keeps
  /// none.
  Position keeps_at(RequestId id) const;
  /// The same of a state that waits for take_windows().
  Position kept_state_at(RequestId id) const;
  Result<Handoff> take_windows(RequestId id);
  /// Host memory, valid until release(). REQUIRES: last(), index < blocks_ready(id).
  std::span<const std::byte> block(RequestId id, int64_t index) const;
  /// REQUIRES: last(), a prompt that has been read, once.
  Result<Handoff> take_handoff(RequestId id);
  int64_t max_handoff_bytes() const;

  int64_t free_blocks() const;
  int64_t total_blocks() const;
  const EngineOptions& options() const;  // completed
  const LoadedModel& model() const;

 private:
  PrefillRank();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::engine
