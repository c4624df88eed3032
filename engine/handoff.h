#pragma once
// What a finished prefill hands over besides its KV blocks: fixed size, once per request (spec/ced.md 2.3). As bytes:
// docs/formats/handoff.md.

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/buffer.h"
#include "core/ids.h"
#include "engine/options.h"

namespace cedar::engine {

struct LoadedModel;

/// Host memory, whatever device the engines use.
struct Handoff {
  Position length = 0;  // N: prompt tokens read
  /// The encoder layers' window rows of positions [length - window_rows, length), oldest first:
  /// [encoder layers, window_rows, window_row_bytes].
  Buffer windows;
  int64_t window_rows = 0;
  /// The open compressor group of each ratio > 1 source, for length % ratio != 0:
  /// per such source [ratio - 1, head_dim] kv, then the same of gate, fp32. Rows past length % ratio unset.
  Buffer pending;
  /// Input of the boundary layer for positions [length - boundary_rows, length).
  Buffer boundary_x;    // bf16 [boundary_rows, copies, hidden]
  Buffer boundary_pre;  // f32 [boundary_rows, copies]
  int64_t boundary_rows = 0;

  int64_t bytes() const {
    return windows.bytes() + pending.bytes() + boundary_x.bytes() + boundary_pre.bytes();
  }
};

/// Rows before the end of a prompt of `length` tokens that the decoder half replays.
int64_t replay_rows(const LoadedModel& model, ReplayMode mode, Position length);

/// Of Handoff::pending for a prompt of `length` tokens; 0: no group is open.
int64_t pending_bytes(const LoadedModel& model, Position length);

/// Whether every part has the size that `model` gives it for a prompt of `length` tokens. Errors: invalid_argument naming
/// the part, what was expected and what came.
Status check_handoff(const LoadedModel& model, ReplayMode mode, Position length,
                     const Handoff& handoff);

int64_t serialised_bytes(const Handoff& handoff);
/// Of any prompt that the options allow.
int64_t max_handoff_bytes(const LoadedModel& model, const EngineOptions& options);
/// REQUIRES: `to` has serialised_bytes(handoff).
void serialise(const Handoff& handoff, std::span<std::byte> to);
/// Any bytes are safe input; check_handoff() tells whether they fit a model. Errors: invalid_argument naming the field.
Result<Handoff> parse_handoff(std::span<const std::byte> bytes);

}  // namespace cedar::engine
