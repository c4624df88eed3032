#pragma once
// What a finished prefill hands over besides its KV blocks: fixed size, once per request (spec/ced.md 2.3).

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/ids.h"

namespace cedar::engine {

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

}  // namespace cedar::engine
