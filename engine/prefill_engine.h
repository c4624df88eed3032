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
};

/// What one step did for one request.
struct PrefillEvent {
  RequestId id;
  int64_t rows = 0;       // prompt rows computed in this step
  Position computed = 0;  // prompt rows computed so far
  int64_t blocks_ready =
      0;  // leading KV blocks whose rows are all written (the last, open one included
          // once the prompt is finished)
  bool finished = false;
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
  bool idle() const;

  /// One chunk over the queued requests, shortest remaining first with ageing. Nothing to do: no events.
  Result<std::vector<PrefillEvent>> step();

  /// Bytes of KV block `index` (< blocks_ready), host memory. Valid until release().
  std::span<const std::byte> block(RequestId id, int64_t index) const;
  /// REQUIRES: finished.
  Result<Handoff> take_handoff(RequestId id);
  /// As serialised by engine/handoff.h.
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
