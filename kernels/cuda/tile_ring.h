#pragma once
// Tiles of x and W on their way from global to shared memory: one thread of the block, the producer, has the
// copy engine bring them, the warpgroups (the consumers) multiply, and a ring of slots lies between them.
//
// A step fills a slot: kXBytes of x, as wgmma wants them, and behind them up to kWeightBytes of W. Steps are
// numbered over the whole life of the block, and a slot's place in the ring follows from the number. The
// copies announce themselves to the slot's barrier, and are ordered with the tensor cores' reads: neither
// needs a fence.

#include <cstdint>

#include "kernels/cuda/async_copy.h"

namespace cedar::kernels::cuda {

template <int kXBytes, int kWeightBytes, int kRing, int kConsumerWarps>
struct TileRing {
  static constexpr int kSlots = kRing;
  static constexpr int kSlotBytes = (kXBytes + kWeightBytes + 1023) / 1024 * 1024;
  static constexpr int kBarrierBytes = 1024;  // keeps the slots aligned as wgmma wants them
  static constexpr int kSharedBytes = kBarrierBytes + kSlotBytes * kRing + 1024;
  /// Where memory begins that may serve another purpose once all steps are done. The barriers' may not:
  /// operations on them take a way of their own and can come after a later store of the block.
  static constexpr int kFreeOffset = kBarrierBytes + 1024;
  static_assert(kXBytes % 1024 == 0 && kRing >= 3 && kRing <= 32);

  /// `shared`: kSharedBytes. All threads of the block; ends with a block-wide barrier.
  __device__ __forceinline__ explicit TileRing(const void* shared)
      : barriers_((shared_address(shared) + 1023) & ~1023u) {
    if (threadIdx.x == 0) {
      for (int slot = 0; slot < kRing; ++slot) {
        barrier_init(full(slot), 1);
        barrier_init(empty(slot), kConsumerWarps);
      }
      barrier_init_done();
    }
    __syncthreads();
  }

  /// The producer: waits until the slot of `step` is free and calls copy(x, weights, barrier), which starts
  /// copies of `bytes` in all.
  template <class Copy>
  __device__ __forceinline__ void fill(int step, int bytes, const Copy& copy) const {
    const uint32_t barrier = full(step % kRing);
    if (step >= kRing) barrier_wait(empty(step % kRing), (step / kRing - 1) & 1);
    barrier_arrive_expecting(barrier, bytes);
    copy(x(step), weights(step), barrier);
  }

  /// fill() in halves, for steps whose x is not there yet: the weights at once, x later.
  template <class Copy>
  __device__ __forceinline__ void fill_weights(int step, int bytes, const Copy& copy) const {
    const uint32_t barrier = full(step % kRing);
    if (step >= kRing) barrier_wait(empty(step % kRing), (step / kRing - 1) & 1);
    barrier_arrive_expecting(barrier, bytes);
    copy(weights(step), barrier);
  }
  template <class Copy>
  __device__ __forceinline__ void fill_x(int step, const Copy& copy) const {
    copy(x(step), full(step % kRing));
  }

  /// Consumers: until the slot of `step` is full; where its parts are; and, by every thread, when this warp
  /// has read it.
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

  uint32_t barriers_;
};

}  // namespace cedar::kernels::cuda
