#pragma once
// The reading half: chunked prefill through the encoder layers, plus the projection of the decoder's global
// KV from the encoder's output. Owns pages and windows of the requests it is reading.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "core/ids.h"
#include "core/result.h"
#include "engine/engram_source.h"
#include "engine/handoff.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/resume_point.h"

namespace cedar::engine {

/// Rows that replace the embedding at an image span's positions.
struct ImageRows {
  Position position = 0;  // of the first row
  int64_t rows = 0;
  std::vector<Bf16> values;  // [rows, hidden]
};

struct PrefillRequest {
  RequestId id;
  std::vector<TokenId> tokens;    // not empty; every id inside the vocabulary
  std::vector<ImageRows> images;  // spans of image tokens, in order
  /// Leading KV blocks that import_block() will bring; with any, nothing is computed before resume().
  int64_t cached_blocks = 0;
  /// Keep the state behind the prompt's last whole block for take_windows(): a chunk ends there. Nothing is kept when all of
  /// it is cached.
  bool keep_windows = false;
};

/// What one step did for one request.
struct PrefillEvent {
  RequestId id;
  int64_t rows = 0;       // prompt rows computed in this step, those of a replay included
  Position computed = 0;  // leading prompt rows that are done, the cached ones included
  int64_t blocks_ready =
      0;  // leading KV blocks whose rows are all written (the last, open one included
          // once the prompt is finished)
  bool finished = false;
  Position cached = 0;  // of `computed` came from the cache
  ResumeKind resume = ResumeKind::none;
  int64_t replayed = 0;     // cached rows computed again so far, in all steps
  Position windows_at = 0;  // of the state that waits for take_windows(); 0: none does
};

struct PrefillLoad {
  int64_t queued_tokens = 0;
  int32_t requests = 0;
  int64_t free_blocks = 0;
};

/// One thread drives one engine.
class PrefillEngine {
 public:
  static Result<std::unique_ptr<PrefillEngine>> create(std::shared_ptr<const LoadedModel> model,
                                                       std::shared_ptr<EngramSource> engram,
                                                       const EngineOptions& options);
  ~PrefillEngine();

  /// Takes a slot and all pages the prompt needs. Errors: context_too_long (can never fit; names need and
  /// capacity), overloaded (no room now), invalid_argument (empty prompt, id outside the vocabulary).
  Status submit(PrefillRequest request);
  /// No request that could go on; those that wait for resume() do not count.
  bool idle() const;

  /// How many of `cached_blocks` leading blocks are worth importing for a prompt of `length` tokens: whole blocks that
  /// leave a token to compute; none where the replay would begin at the prompt's start anyway. `windows_at`: of the windows
  /// that could be imported, 0: none; with them no replay may be needed.
  int64_t usable_blocks(Position length, int64_t cached_blocks, Position windows_at = 0) const;
  /// Copies a cached block (host memory) into its page; in any order. REQUIRES: submit() with cached_blocks > index, not
  /// yet resumed. Errors: not_found, invalid_argument.
  Status import_block(RequestId id, int64_t index, std::span<const std::byte> bytes);
  /// The state that an earlier turn kept (take_windows()), instead of a replay. Its rows and those of the imported blocks must
  /// be of the same tokens; what cannot be checked is the caller's. REQUIRES: as import_block(). Errors: not_found;
  /// invalid_argument naming the part that is not this model's, or a length that is no whole number of cached blocks. After an
  /// error the prompt goes on without.
  Status import_windows(RequestId id, Handoff state);
  /// Begins to compute behind the first `blocks` blocks, all of which were imported; fewer than announced, or none, when
  /// the rest could not be had. The windows of the encoder layers are those imported, or are rebuilt by a replay
  /// (resume_point()). Errors: not_found, invalid_argument.
  Status resume(RequestId id, int64_t blocks);

  /// One chunk over the queued requests, shortest remaining first with ageing. Nothing to do: no events.
  Result<std::vector<PrefillEvent>> step();

  /// Bytes of KV block `index` (< blocks_ready), host memory. Valid until release().
  std::span<const std::byte> block(RequestId id, int64_t index) const;
  /// REQUIRES: finished.
  Result<Handoff> take_handoff(RequestId id);
  /// The hand-off state of the prompt's first `windows_at` tokens, once an event has told it; until release(), once. Errors:
  /// not_found.
  Result<Handoff> take_windows(RequestId id);
  /// Of both. As serialised by engine/handoff.h.
  int64_t max_handoff_bytes() const;
  /// Frees slot and pages; at any time. Unknown ids are ignored.
  void release(RequestId id);

  PrefillLoad load() const;
  const LoadedModel& model() const;

 private:
  PrefillEngine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::engine
