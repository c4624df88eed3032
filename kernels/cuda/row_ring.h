#pragma once
// Rows of bf16 on their way from global to shared memory, for wgmma: helper warps of the block copy, the warpgroups (the
// consumers) multiply, and a ring of slots lies between them.
//
// A slot holds kDepth stages; a stage holds 64 consecutive inputs of kRows rows, swizzled (wgmma.h). Steps, one slot
// each, are numbered over the whole life of the block. kIssuers helper warps start copies, in turns, and never wait for
// them; one more helper, the relay, waits until a slot's copies have landed, fences and announces the slot. The fence is
// needed because the tensor cores read shared memory by another path than copies write it. It waits for every access of
// its thread that is under way, so it must not stand in a warp that has any.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/wgmma.h"

namespace cedar::kernels::cuda {

template <int kRows, int kDepth, int kRing, int kIssuers, int kConsumerWarps>
struct RowRing {
  static constexpr int kHelperWarps = kIssuers + 1;
  static constexpr int kStageBytes = kRows * 128;
  static constexpr int kSlotBytes = kStageBytes * kDepth;
  static constexpr int kBarrierBytes = 1024;  // keeps the slots aligned as wgmma wants them
  static constexpr int kSharedBytes = kBarrierBytes + kSlotBytes * kRing + 1024;
  // An issuer's steps are kIssuers apart: no further than the ring is long, or it could mistake a slot's last release but
  // one for the last.
  static_assert(kRows % 8 == 0 && kRing >= 3 && kRing <= 32 && kIssuers <= kRing);

  /// `shared`: kSharedBytes. All threads of the block; ends with a block-wide barrier.
  __device__ __forceinline__ explicit RowRing(const void* shared)
      : barriers_((shared_address(shared) + 1023) & ~1023u) {
    if (threadIdx.x == 0) {
      for (int slot = 0; slot < kRing; ++slot) {
        barrier_init(landed(slot), 32);
        barrier_init(full(slot), 1);
        barrier_init(empty(slot), kConsumerWarps);
      }
      barrier_init_done();
    }
    __syncthreads();
  }

  /// By helper warp `warp`: its share of stages [first, last) of inputs, as steps from `step` on. row_at(i): row i of
  /// the tile, 16-byte aligned, or null where there is none: its place keeps what it held. `columns`: inputs of a row, a
  /// multiple of 8; beyond them, and in stages beyond the last that fill a slot up, inputs are zero.
  template <class RowAt>
  __device__ __forceinline__ void help(const RowAt& row_at, int warp, int columns, int first,
                                       int last, int step) const {
    const int end = step + step_count(first, last);
    if (warp == kIssuers) {
      if (threadIdx.x % 32 == 0) relay(step, end);
    } else {
      // Which warp fills a step follows from the step's number alone, so that the turns hold across calls.
      for (int s = step + (warp + kIssuers - step % kIssuers) % kIssuers; s < end; s += kIssuers) {
        issue(row_at, columns, first + (s - step) * kDepth, last, s);
      }
    }
    __syncwarp();
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
  __device__ __forceinline__ uint32_t landed(int slot) const { return barriers_ + 512 + slot * 8; }

  template <class RowAt>
  __device__ __forceinline__ void issue(const RowAt& row_at, int columns, int first, int last,
                                        int step) const {
    const int lane = threadIdx.x % 32, piece = lane & 7;
    if (step >= kRing) barrier_wait(empty(step % kRing), (step / kRing - 1) & 1);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int k = (first + d) * 64 + piece * 8;
      const bool inside = first + d < last && k < columns;
      const uint32_t to = slot(step) + d * kStageBytes;
#pragma unroll 8
      for (int i = 0; i < kRows / 4; ++i) {
        const int row = lane / 8 + 4 * i;
        const Bf16* from = row_at(row);
        if (from != nullptr) copy_async(to + swizzled(row, piece), from + (inside ? k : 0), inside);
      }
    }
    copy_async_arrive(landed(step % kRing));
  }

  __device__ __forceinline__ void relay(int step, int end) const {
    for (int s = step; s < end; ++s) {
      barrier_wait(landed(s % kRing), (s / kRing) & 1);
      fence_for_tensor_cores();
      barrier_arrive(full(s % kRing));
    }
  }

  uint32_t barriers_;
};

}  // namespace cedar::kernels::cuda
