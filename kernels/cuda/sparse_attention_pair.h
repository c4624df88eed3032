#pragma once
// What the warpgroups of a block of sparse attention share (sparse_attention_tiles.cu).

#include <cstdint>

#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/packed_rows.h"
#include "kernels/cuda/sparse_attention_list.h"

namespace cedar::kernels::cuda::sparse_pair {

constexpr int kHeads = 64;
constexpr int kDim = 512;
constexpr int kCluster = 2;
constexpr int kOwnDim = kDim / kCluster;  // channels of a block
constexpr int kGroupThreads = 128;
constexpr int kGroupWarps = kGroupThreads / kWarp;
constexpr int kConsumers = 2 * kGroupThreads;
constexpr int kDecoderWarps = 8;
constexpr int kDecoders = kDecoderWarps * kWarp;
constexpr int kDecoderRows = kListRows / kDecoderWarps;  // a warp's, of a block
constexpr int kThreads = kConsumers + kDecoders + kGroupThreads;
// Registers of a thread: what all are given at the start, shared out anew.
constexpr int kScoreRegisters = 192, kValueRegisters = 176, kDecoderRegisters = 32,
              kFetchRegisters = 48;
constexpr int kPairs = 32;            // rotated
constexpr int kTileBytes = 64 * 128;  // 64 rows of 64 channels
constexpr int kHalfBytes = 4 * kTileBytes;
constexpr int kStages = 3;  // blocks of decoded rows

/// What scores tell values of one block of rows: each thread its counterpart.
struct Weights {
  uint4 fragments[4][kGroupThreads];
  float2 alpha[kGroupThreads];
  float2 factor[kGroupThreads];  // with a query's last block
};

struct Shared {
  uint8_t q[kHalfBytes];  // of the next query, once the present one's is in registers
  uint8_t rows[kStages][kHalfBytes];
  float4 scores[2][8][kGroupThreads];  // the other block's
  Weights weights[2];
  PackedBlock packed[2];
  ChosenRows<kGroupWarps> chosen;
  // Decoders are at most kStages blocks of rows ahead, and values two behind scores.
  static constexpr int kRotations = 8;
  float2 rotations[kRotations][kPairs];
  uint64_t packed_full[2], packed_empty[2], rows_full[kStages], rows_empty[kStages];
  uint64_t scores_full[2], weights_full[2], weights_empty[2];
  int32_t packed_rows[2];  // 0: the query attends to nothing
  int32_t packed_is_last[2], packed_is_q8[2];
  int32_t block_rows[kStages];
  int32_t block_is_last[kStages];
};

/// Counts over the whole life of the kernel: which of kCount places, and which of its phases.
template <int kCount>
struct Turn {
  uint32_t number = 0;
  __device__ int place() const { return static_cast<int>(number % kCount); }
  __device__ uint32_t phase() const { return number / kCount & 1; }
  /// Until the one that takes turns with this one is done with the place.
  __device__ __forceinline__ void wait_until_empty(uint64_t* barriers) const {
    if (number >= kCount) barrier_wait(shared_address(&barriers[place()]), phase() ^ 1);
  }
};

}  // namespace cedar::kernels::cuda::sparse_pair
