#pragma once
// One step's rows: which sequence, which positions, and everything kernels need to know about them, computed
// once per step and used by every layer.

#include <compare>
#include <cstdint>
#include <vector>

#include "core/ids.h"
#include "engine/loaded_model.h"
#include "engine/sequence_store.h"
#include "kernels/kernel_context.h"
#include "kernels/paged_rows.h"

namespace cedar::engine {

/// Consecutive rows of one sequence in a step.
struct BatchSequence {
  SequenceSlot slot;
  Position start = 0;           // position of the first row
  std::vector<TokenId> tokens;  // of the rows
  /// Compressed n-gram history is derived from the tokens before `start`, oldest first, at most
  /// max_ngram - 1 of them.
  std::vector<TokenId> history;
  /// Lowest position whose window row may be read (replay starts, resumed prefixes).
  Position window_floor = 0;
  /// Whether global rows are stored. A replay reads rows that the encoder wrote already.
  bool writes_global = true;
  /// Lowest position whose global row is stored: what lies below came from elsewhere and is only read. A multiple of every
  /// compress ratio, so that no group straddles it.
  Position write_floor = 0;
  /// Whether window rows are stored. Padding stores nothing.
  bool writes_window = true;

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  Position end() const { return start + rows(); }
};

/// Groups that this step's rows complete, for one compress ratio > 1, and what stays open.
struct CompressPlan {
  int64_t ratio = 0;
  int64_t groups = 0;
  const int32_t* members = nullptr;         // [groups, ratio], see kernels/compress.h
  const int32_t* pending_rows = nullptr;    // [groups, ratio]
  const int64_t* positions = nullptr;       // [groups] rotary position: first token of the group
  const int64_t* targets = nullptr;         // [groups] row inside the sequence
  const int32_t* sequences = nullptr;       // [groups]
  const int32_t* pending_target = nullptr;  // [rows] row of the pending buffers, -1: not kept
};

struct RatioView {
  int64_t ratio = 0;
  const int64_t* visible = nullptr;  // [rows] floor((position + 1) / ratio)
  int64_t max_visible = 0;
  std::vector<int64_t> visible_host;
};

/// Device arrays of a step. Lives as long as the arena is not reset.
struct StepBatch {
  std::vector<BatchSequence> sequences;
  std::vector<int64_t> row_begin;  // [sequences]
  int64_t rows = 0;
  std::vector<int64_t> positions_host;

  const int32_t* ids = nullptr;                // [rows]
  const int64_t* positions = nullptr;          // [rows]
  const int32_t* row_sequence = nullptr;       // [rows] index into sequences
  const float* fresh_pre = nullptr;            // [rows, copies] pre-mix of fresh stream states
  const uint8_t* image_mask = nullptr;         // [rows]; null when no row is part of an image
  const kernels::WindowSpan* spans = nullptr;  // [rows]
  const int32_t* ring_slots =
      nullptr;  // [rows] -1 for rows that a later row of the step overwrites
  const int32_t* page_table = nullptr;  // [sequences, max_pages]
  int64_t max_pages = 0;
  const int64_t* boundary_targets = nullptr;  // [rows] ratio-1 target row; -1: not stored
  std::vector<CompressPlan> compress;         // one per distinct ratio > 1
  std::vector<RatioView> ratios;              // one per distinct ratio >= 1

  const CompressPlan& compress_for(int64_t ratio) const;
  const RatioView& ratio(int64_t ratio) const;
};

/// What a step is padded to, so that steps of the same shape are the same launches. Padding repeats the first sequence's row
/// and stores nothing; lists are as long as `tokens` tokens of context would make them.
struct StepShape {
  int64_t rows = 0;    // one a sequence
  int64_t tokens = 0;  // of context
  int64_t pages = 0;   // of a sequence
  friend auto operator<=>(const StepShape&, const StepShape&) = default;
};

/// REQUIRES: every sequence has at least one row, and pages for all its rows; with a shape, one row each, and nothing larger
/// than the shape.
StepBatch make_step_batch(kernels::KernelContext& ctx, const LoadedModel& model,
                          const SequenceStore& store, std::vector<BatchSequence> sequences,
                          const StepShape* shape = nullptr);

}  // namespace cedar::engine
