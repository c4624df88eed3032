#pragma once
// The parts of a hand-off state that lie in an engine's store, window rows and open compressor groups of one sequence, there
// and back. Where they stand in the state: engine/handoff.h.

#include <cstdint>

#include "core/buffer.h"
#include "core/ids.h"
#include "engine/handoff.h"
#include "engine/loaded_model.h"
#include "engine/sequence_store.h"
#include "kernels/kernel_context.h"

namespace cedar::engine {

/// Which layers a store has. Borrows all of it.
struct StoredLayers {
  const LoadedModel& model;
  SequenceStore& store;
  const kernels::KernelContext& ctx;
  model::LayerRange range;
};

/// Room for both parts of the state behind `length` tokens, of all encoder layers. Errors: out_of_memory.
Result<Handoff> allocate_state(const LoadedModel& model, Position length);
/// What these layers have of it, once everything queued before is done. REQUIRES: the sequence stands at `state.length`.
Status fetch_state(const StoredLayers& layers, SequenceSlot slot, Handoff& state);
/// The other way, in the order of the steps. REQUIRES: check_handoff() found nothing.
Status place_state(const StoredLayers& layers, SequenceSlot slot, const Handoff& state);

}  // namespace cedar::engine
