#pragma once
// Rows of bf16 on their way from global to shared memory, for wgmma: some threads of the block (the producers) copy,
// the warpgroups (the consumers) multiply, and a ring of slots with two barriers a slot lies between them.
//
// A slot holds kDepth stages; a stage holds 64 consecutive inputs of kRows rows, swizzled (wgmma.h). Steps, one slot
// each, are numbered over the whole life of the block. Producer warps take turns: a warp starts its copies, waits for
// them, fences, announces the slot. The fence waits for all of a thread's memory accesses, so more copies under way
// take more warps, not a longer queue of one.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/wgmma.h"

namespace cedar::kernels::cuda {

template <int kRows, int kDepth, int kRing, int kProducerWarps, int kConsumerWarps>
struct RowRing {
  static constexpr int kStageBytes = kRows * 128;
  static constexpr int kSlotBytes = kStageBytes * kDepth;
  static constexpr int kBarrierBytes = 1024;  // keeps the slots aligned as wgmma wants them
  static constexpr int kSharedBytes = kBarrierBytes + kSlotBytes * kRing + 1024;
  static_assert(kRows % 8 == 0 && kRing >= 3 && kRing <= 32);

  /// `shared`: kSharedBytes. All threads of the block; ends with a block-wide barrier.
  __device__ __forceinline__ explicit RowRing(const void* shared)
      : barriers_((shared_address(shared) + 1023) & ~1023u) {
    if (threadIdx.x == 0) {
      for (int slot = 0; slot < kRing; ++slot) {
        barrier_init(full(slot), 32);
        barrier_init(empty(slot), kConsumerWarps);
      }
      barrier_init_done();
    }
    __syncthreads();
  }

  /// By producer warp `warp`: its share of stages [first, last) of inputs, as steps from `step` on. row_at(i): row i of
  /// the tile, 16-byte aligned, or null where there is none: its place keeps what it held. `columns`: inputs of a row, a
  /// multiple of 8; beyond them, and in stages beyond the last that fill a slot up, inputs are zero.
  template <class RowAt>
  __device__ __forceinline__ void produce(const RowAt& row_at, int warp, int columns, int first,
                                          int last, int step) const {
    const int lane = threadIdx.x % 32, piece = lane & 7, steps = step_count(first, last);
    for (int s = warp; s < steps; s += kProducerWarps) {
      const int number = step + s;
      if (number >= kRing) barrier_wait(empty(number % kRing), (number / kRing - 1) & 1);
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int stage = first + s * kDepth + d, k = stage * 64 + piece * 8;
        const bool inside = stage < last && k < columns;
        const uint32_t to = slot(number) + d * kStageBytes;
#pragma unroll 8
        for (int i = 0; i < kRows / 4; ++i) {
          const int row = lane / 8 + 4 * i;
          const Bf16* from = row_at(row);
          if (from != nullptr)
            copy_async(to + swizzled(row, piece), from + (inside ? k : 0), inside);
        }
      }
      copy_async_commit();
      copy_async_wait<0>();
      fence_for_tensor_cores();
      barrier_arrive(full(number % kRing));
    }
  }

  static __device__ __forceinline__ int step_count(int first, int last) {
    return (last - first + kDepth - 1) / kDepth;
  }

  /// Consumers: until the slot of `step` is full; its address; and, by every thread, when this warp has read it.
  __device__ __forceinline__ void wait(int step) const {
    barrier_wait(full(step % kRing), (step / kRing) & 1);
  }
  __device__ __forceinline__ uint32_t slot(int step) const {
    return barriers_ + kBarrierBytes + step % kRing * kSlotBytes;
  }
  __device__ __forceinline__ void release(int step) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(step % kRing));
  }

 private:
  __device__ __forceinline__ uint32_t full(int slot) const { return barriers_ + slot * 8; }
  __device__ __forceinline__ uint32_t empty(int slot) const { return barriers_ + 256 + slot * 8; }

  uint32_t barriers_;
};

}  // namespace cedar::kernels::cuda
