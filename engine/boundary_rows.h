#pragma once
// What an encoder keeps of its output: the boundary layer's input for some rows of one prompt, on the engine's device.

#include <cstdint>

#include "core/buffer.h"
#include "core/ids.h"
#include "engine/handoff.h"
#include "engine/layer_ops.h"
#include "engine/loaded_model.h"
#include "kernels/kernel_context.h"

namespace cedar::engine {

class BoundaryRows {
 public:
  BoundaryRows() = default;
  /// Room for the rows of positions [begin, end). Errors: those of the device's memory.
  static Result<BoundaryRows> create(const LoadedModel& model, Position begin, Position end);

  /// Takes over those of the rows that there is room for. Row `row` of the stream is position `begin`'s. REQUIRES: a closed
  /// state.
  Status keep(const kernels::KernelContext& ctx, const StreamState& state, int64_t row,
              Position begin, Position end);
  /// The same from a state that was handed over. `handoff` may go once everything queued is done.
  Status place(const kernels::KernelContext& ctx, const Handoff& handoff);
  /// Copies the last `rows` rows before `end`, which must be here, to the host.
  Status fetch(const kernels::KernelContext& ctx, Position end, int64_t rows,
               Handoff& handoff) const;

 private:
  Position begin_ = 0, end_ = 0;
  int64_t x_bytes_ = 0, pre_bytes_ = 0;  // of a row
  Buffer x_, pre_;
};

}  // namespace cedar::engine
