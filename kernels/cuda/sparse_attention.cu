// Sparse attention of any shape: a block of threads takes four heads of a query. sparse_attention_tiles.cu
// has the release's shape on the tensor cores.

#include "core/units.h"
#include "kernels/cuda/attention_block.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/level.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/sparse_attention_tiles.h"

namespace cedar::kernels::cuda {
namespace {

/// Copies the set entries of a list of `k` to `out`, in order, and returns how many there are. One warp.
__device__ int compact(const int32_t* list, int64_t k, int32_t* out) {
  const int lane = threadIdx.x % kWarp;
  int count = 0;
  for (int64_t base = 0; base < k; base += kWarp) {
    const int32_t entry = base + lane < k ? list[base + lane] : -1;
    const uint32_t set = __ballot_sync(kAllLanes, entry >= 0);
    if (entry >= 0) out[count + __popc(set & ((1u << lane) - 1))] = entry;
    count += __popc(set);
  }
  return count;
}

/// Heads [blockIdx.y * 4, ...) of query blockIdx.x.
__global__ void __launch_bounds__(kPlainThreads) sparse_kernel(SparseAttentionParams p) {
  extern __shared__ uint8_t storage[];
  __shared__ int chosen_count;
  const int64_t row = blockIdx.x;
  const int head_dim = static_cast<int>(p.head_dim), pairs = head_dim / 2;
  const int first_head = static_cast<int>(blockIdx.y) * kPlainQueries;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const PlainState s(storage, head_dim, false);
  int32_t* chosen = reinterpret_cast<int32_t*>(s.alpha + kPlainQueries);  // [k]
  const WindowSpan window = p.window[row];

  if (warp == 0) {
    const int count = p.topk != nullptr ? compact(p.topk + row * p.k, p.k, chosen) : 0;
    if (lane == 0) chosen_count = count;
  }
  for (int i = threadIdx.x; i < kPlainQueries * head_dim; i += kPlainThreads) {
    const int head = first_head + i / head_dim;
    s.q[i] = head < p.heads ? widen(p.q[(row * p.heads + head) * head_dim + i % head_dim]) : 0.0f;
    s.sums[i] = 0;
  }
  __syncthreads();
  const int ring_rows = static_cast<int>(window.ring_end - window.ring_begin);
  const int window_rows = ring_rows + window.chunk_end - window.chunk_begin;
  const int total = window_rows + chosen_count;
  const int64_t chunk_bytes = packed_row_bytes(RowFormat::q8, head_dim);
  PlainSoftmax softmax;
  for (int begin = 0; begin < total; begin += kPlainKeys) {
    const int count = min(total - begin, kPlainKeys);
    for (int i = warp; i < count; i += kPlainQueries) {
      const int entry = begin + i;
      uint32_t* words = s.key_words + i * PlainState::stride(head_dim);
      if (entry < window_rows) {
        const uint8_t* packed =
            entry < ring_rows
                ? ring_row(p.rings, window.slot, window.ring_begin + entry)
                : p.chunk_rows + (window.chunk_begin + entry - ring_rows) * chunk_bytes;
        for (int w = lane; w < pairs; w += kWarp)
          words[w] = row_pair<RowFormat::q8>(packed, head_dim, w);
      } else {
        const uint8_t* packed = paged_row(p.global, p.sequences[row], chosen[entry - window_rows]);
        for (int w = lane; w < pairs; w += kWarp)
          words[w] = row_pair<RowFormat::q4n>(packed, head_dim, w);
      }
    }
    plain_attend(s, softmax, count, p.scale);
  }

  const int head = first_head + warp;
  if (head >= p.heads) return;
  uint32_t* o = reinterpret_cast<uint32_t*>(p.o + (row * p.heads + head) * head_dim);
  const float* sums = s.sums + warp * head_dim;
  const float denominator = softmax.total + exp_exact(p.sink[head] - softmax.maximum);
  const int first_rotated =
      p.inv_freq != nullptr ? pairs - static_cast<int>(p.rotary_dim / 2) : pairs;
  for (int i = lane; i < pairs; i += kWarp) {
    if (total == 0) {
      o[i] = 0;
      continue;
    }
    uint32_t word = pack_bf16(sums[2 * i] / denominator, sums[2 * i + 1] / denominator);
    if (i >= first_rotated) {
      const float2 turned = rotate(low_half(word), high_half(word),
                                   rotation(p.positions[row], p.inv_freq[i - first_rotated], true));
      word = pack_bf16(turned.x, turned.y);
    }
    o[i] = word;
  }
}

}  // namespace

Status sparse_attention(KernelContext& ctx, const SparseAttentionParams& p) {
  if (on_hopper(ctx) && fits_tiles(p)) return sparse_attention_tiles(ctx, p);
  if (p.rotate_q) {
    RopeParams rotate;
    rotate.x = p.q;
    rotate.row_stride = p.heads * p.head_dim;
    rotate.head_stride = rotate.head_dim = p.head_dim;
    rotate.positions = p.positions;
    rotate.inv_freq = p.inv_freq;
    rotate.rows = p.rows;
    rotate.heads = p.heads;
    rotate.rotary_dim = p.rotary_dim;
    CEDAR_CHECK_OK(cuda::rope(ctx, rotate));
  }
  const int64_t list_bytes = p.topk != nullptr ? p.k * int64_t{sizeof(int32_t)} : 0;
  const auto shared =
      static_cast<size_t>(PlainState::bytes(static_cast<int>(p.head_dim), false) + list_bytes);
  CEDAR_CHECK_OK(allow_shared("sparse_attention", sparse_kernel, shared));
  const dim3 grid(static_cast<unsigned>(p.rows),
                  static_cast<unsigned>(ceil_div(p.heads, kPlainQueries)));
  sparse_kernel<<<grid, kPlainThreads, shared, stream_of(ctx)>>>(p);
  return launched("sparse_attention");
}

}  // namespace cedar::kernels::cuda
