#pragma once
// Tiles of x and W on their way from global to shared memory: helper warps of the block copy, the warpgroups (the
// consumers) multiply, and a ring of slots lies between them.
//
// A step fills a slot with kDepth stages: 64 consecutive inputs of kRows rows of x each, swizzled for wgmma (wgmma.h),
// and what belongs to them of W, as the caller copies it. Steps are numbered over the whole life of the block, and a
// slot's place in the ring and the warp that fills it follow from the number. kIssuers helper warps start copies. W's
// announce themselves. x's are copies by threads, which the tensor cores may only read after a fence: a relay waits until
// a slot's have landed, fences and announces. Where one warp issues it is the relay, too, a step behind itself; where x
// is large several issue and one more warp relays, because a fence may wait for every copy of its warp.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/wgmma.h"

namespace cedar::kernels::cuda {

/// kXStages: most stages of x a slot; kWeightBytes: most bytes of W a slot.
template <int kRows, int kXStages, int kWeightBytes, int kRing, int kIssuers, int kConsumerWarps>
struct TileRing {
  static constexpr int kHelperWarps = kIssuers == 1 ? 1 : kIssuers + 1;
  static constexpr int kStageBytes = kRows * 128;
  static constexpr int kXBytes = kStageBytes * kXStages;
  static constexpr int kSlotBytes = (kXBytes + kWeightBytes + 1023) / 1024 * 1024;
  static constexpr int kBarrierBytes = 1024;  // keeps the slots aligned as wgmma wants them
  static constexpr int kSharedBytes = kBarrierBytes + kSlotBytes * kRing + 1024;
  // An issuer's steps are kIssuers apart: no further than the ring is long, or it could mistake a slot's last release but
  // one for the last.
  static_assert(kRows % 8 == 0 && kRing >= 3 && kRing <= 32 && kIssuers <= kRing);

  /// `shared`: kSharedBytes. All threads of the block; ends with a block-wide barrier.
  __device__ __forceinline__ explicit TileRing(const void* shared)
      : barriers_((shared_address(shared) + 1023) & ~1023u) {
    if (threadIdx.x == 0) {
      for (int slot = 0; slot < kRing; ++slot) {
        barrier_init(landed(slot), 32);
        barrier_init(full(slot), 2);
        barrier_init(empty(slot), kConsumerWarps);
      }
      barrier_init_done();
    }
    __syncthreads();
  }

  template <int kDepth>
  static __device__ __forceinline__ int step_count(int first, int last) {
    return (last - first + kDepth - 1) / kDepth;
  }

  /// By helper warp `warp`: its share of stages [first, last) of inputs, as steps from `step` on. row_at(i): row i of
  /// the tile, 16-byte aligned, or null where there is none: its place keeps what it held. `columns`: inputs of a row, a
  /// multiple of 8; beyond them, and in stages beyond the last that fill a slot up, inputs are zero.
  /// copy_weights(to, barrier, stage, stages), by one thread: bulk copies of W's part, whose bytes it tells the barrier.
  template <int kDepth, class RowAt, class CopyWeights>
  __device__ __forceinline__ void help(const RowAt& row_at, const CopyWeights& copy_weights,
                                       int warp, int columns, int first, int last, int step) const {
    static_assert(kDepth <= kXStages);
    const int end = step + step_count<kDepth>(first, last);
    const auto issue = [&](int s) {
      const int stage = first + (s - step) * kDepth;
      if (s >= kRing) barrier_wait(empty(s % kRing), (s / kRing - 1) & 1);
      if (threadIdx.x % 32 == 0) {
        copy_weights(weights(s), full(s % kRing), stage, min(kDepth, last - stage));
      }
      __syncwarp();
      copy_rows<kDepth>(row_at, columns, stage, last, s);
    };
    if constexpr (kIssuers == 1) {
      for (int s = step; s < end; ++s) {
        issue(s);
        if (s > step) relay(s - 1);
      }
      relay(end - 1);
    } else if (warp == kIssuers) {
      for (int s = step; s < end; ++s) relay(s);
    } else {
      for (int s = step + (warp + kIssuers - step % kIssuers) % kIssuers; s < end; s += kIssuers)
        issue(s);
    }
    __syncwarp();
  }

  /// Consumers: until the slot of `step` is full; where its parts are; and, by every thread, when this warp has read it.
  __device__ __forceinline__ void wait(int step) const {
    barrier_wait(full(step % kRing), (step / kRing) & 1);
  }
  __device__ __forceinline__ uint32_t x(int step) const {
    return barriers_ + kBarrierBytes + step % kRing * kSlotBytes;
  }
  __device__ __forceinline__ uint32_t weights(int step) const { return x(step) + kXBytes; }
  __device__ __forceinline__ void release(int step) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(step % kRing));
  }

 private:
  __device__ __forceinline__ uint32_t full(int slot) const { return barriers_ + slot * 8; }
  __device__ __forceinline__ uint32_t empty(int slot) const { return barriers_ + 256 + slot * 8; }
  __device__ __forceinline__ uint32_t landed(int slot) const { return barriers_ + 512 + slot * 8; }

  __device__ __forceinline__ void relay(int step) const {
    if (threadIdx.x % 32 == 0) {
      barrier_wait(landed(step % kRing), (step / kRing) & 1);
      fence_for_tensor_cores();
      barrier_arrive(full(step % kRing));
    }
    __syncwarp();
  }

  template <int kDepth, class RowAt>
  __device__ __forceinline__ void copy_rows(const RowAt& row_at, int columns, int first, int last,
                                            int step) const {
    const int lane = threadIdx.x % 32, piece = lane & 7;
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int k = (first + d) * 64 + piece * 8;
      const bool inside = first + d < last && k < columns;
      const uint32_t to = x(step) + d * kStageBytes;
#pragma unroll 8
      for (int i = 0; i < kRows / 4; ++i) {
        const int row = lane / 8 + 4 * i;
        const Bf16* from = row_at(row);
        if (from != nullptr) copy_async(to + swizzled(row, piece), from + (inside ? k : 0), inside);
      }
    }
    copy_async_arrive(landed(step % kRing));
  }

  uint32_t barriers_;
};

}  // namespace cedar::kernels::cuda
