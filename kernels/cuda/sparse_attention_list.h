#pragma once
// What one query of sparse attention attends to, as blocks of 64 rows. Window rows and chosen rows do not share a block: a
// block is decoded in one format.

#include <cstdint>

#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/device_math.h"
#include "kernels/quantize.h"
#include "kernels/sparse_attention.h"

namespace cedar::kernels::cuda {

constexpr int kListRows = 64;  // of a block
constexpr int kMostChosen = 512;

/// The window's part of a list.
struct WindowRows {
  WindowSpan window;
  int ring_rows, count;

  __device__ __forceinline__ WindowRows(const SparseAttentionParams& p, int64_t query)
      : window(p.window[query]) {
    ring_rows = static_cast<int>(window.ring_end - window.ring_begin);
    count = ring_rows + window.chunk_end - window.chunk_begin;
  }
  __device__ int blocks() const { return (count + kListRows - 1) / kListRows; }
  /// Where row `entry` lies; null past the end.
  __device__ __forceinline__ const uint8_t* row(const SparseAttentionParams& p, int entry) const {
    if (entry >= count) return nullptr;
    if (entry < ring_rows) {
      const auto position = static_cast<uint32_t>(window.ring_begin + entry);
      return p.rings.base + window.slot * p.rings.slot_stride_bytes +
             position % static_cast<uint32_t>(p.rings.window) * p.rings.row_bytes;
    }
    constexpr int64_t kHeadDim = 512;
    return p.chunk_rows + int64_t{window.chunk_begin + entry - ring_rows} *
                              packed_row_bytes(RowFormat::q8, kHeadDim);
  }
};

/// The chosen rows of the query in hand.
template <int kWarps>
struct ChosenRows {
  const uint8_t* rows[kMostChosen];
  int32_t counts[kWarps];

  /// The entries of one lane on their way.
  struct Entries {
    static constexpr int kEach = kMostChosen / kWarps / kWarp;
    int32_t entry[kEach];
    int64_t pages;  // of the query's sequence, in the page table
  };

  /// Asks for the list of `query`; kWarps warps, this being `warp`.
  static __device__ __forceinline__ Entries ask(const SparseAttentionParams& p, int64_t query,
                                                int warp) {
    Entries e;
    const int lane = threadIdx.x % kWarp;
    e.pages = p.topk != nullptr ? p.sequences[query] * p.global.max_pages : 0;
#pragma unroll
    for (int i = 0; i < Entries::kEach; ++i) {
      const int at = (warp * Entries::kEach + i) * kWarp + lane;
      e.entry[i] = p.topk != nullptr && at < p.k ? p.topk[query * p.k + at] : -1;
    }
    return e;
  }

  /// Fills in where the set entries lie, in order; returns how many. The warps share named barrier `barrier`, and call
  /// together; none may still read the last query's rows, which the barrier sees to.
  __device__ __forceinline__ int fill(const SparseAttentionParams& p, const Entries& e, int warp,
                                      int barrier) {
    constexpr int kEach = Entries::kEach;
    const PagedRows& pages = p.global;
    const int lane = threadIdx.x % kWarp;
    const auto per_page = static_cast<uint32_t>(pages.rows_per_page);
    int32_t page[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      page[i] = e.entry[i] < 0
                    ? 0
                    : pages.page_table[e.pages + static_cast<uint32_t>(e.entry[i]) / per_page];
    }
    uint32_t set[kEach];
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      set[i] = __ballot_sync(kAllLanes, e.entry[i] >= 0);
      mine += __popc(set[i]);
    }
    if (lane == 0) counts[warp] = mine;
    sync_warps(barrier, kWarps * kWarp);
    int place = 0, all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) place += counts[w];
      all += counts[w];
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (e.entry[i] >= 0) {
        rows[place + __popc(set[i] & ((1u << lane) - 1))] =
            pages.base + page[i] * pages.page_bytes + pages.offset_bytes +
            static_cast<uint32_t>(e.entry[i]) % per_page * pages.row_bytes;
      }
      place += __popc(set[i]);
    }
    sync_warps(barrier, kWarps * kWarp);
    return all;
  }
};

}  // namespace cedar::kernels::cuda
