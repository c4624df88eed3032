#pragma once
// A sequence's caches as the golden data keeps them: dequantised, widened.

#include <vector>

#include "engine/sequence_store.h"
#include "engine/verify/session.h"

namespace cedar::engine::verify {

/// Main KV rows [rows, head_dim] of a KV source.
std::vector<float> main_kv_rows(Session& session, SequenceStore& store, SequenceSlot slot,
                                int64_t source, int64_t rows);
/// Index keys [rows, index_head_dim] of a KV source.
std::vector<float> index_key_rows(Session& session, SequenceStore& store, SequenceSlot slot,
                                  int64_t source, int64_t rows);
/// The first `rows` slots of a window ring, [rows, head_dim].
std::vector<float> ring_rows(Session& session, const kernels::WindowRings& rings, SequenceSlot slot,
                             int64_t rows);
/// Open rows of a ratio > 1 source, [rows, head_dim]: `pending` is the store's pending_kv or pending_gate.
std::vector<float> open_rows(Session& session, const float* pending, SequenceSlot slot,
                             int64_t ratio, int64_t rows);

/// Names the kinds that a comparison of caches reports under.
struct CacheKinds {
  Kind window, main_kv, index_keys, open_group;
};
/// Compares every cache that caches.safetensors holds for the prompt with those of `slot`, whose sequence has
/// read exactly the prompt.
void check_caches(Session& session, SequenceStore& store, SequenceSlot slot, const Prompt& prompt,
                  const CacheKinds& kinds);

}  // namespace cedar::engine::verify
