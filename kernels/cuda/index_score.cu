// Indexer scores of any shape: a thread a key, sums over a group in integers, the CPU back end's bits.

#include "core/units.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/index_score_tiles.h"
#include "kernels/cuda/level.h"
#include "kernels/cuda/rows.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 128;

/// Twice the value of an E2M1 code.
__device__ __forceinline__ int twice(uint32_t code) {
  const uint32_t magnitude = 0xc8643210u >> (4 * (code & 7)) & 15u;
  return (code & 8) != 0 ? -static_cast<int>(magnitude) : static_cast<int>(magnitude);
}

struct SharedQuery {
  float* scales;    // [heads * groups], a quarter of the query's scale
  float* weights;   // [heads]
  int8_t* doubled;  // [heads * columns]
};

__device__ SharedQuery expand_query(const IndexScoreParams& p, int64_t row, uint8_t* storage) {
  const int columns = static_cast<int>(p.columns), groups = columns / static_cast<int>(kQ4xGroup);
  const int heads = static_cast<int>(p.heads);
  SharedQuery q;
  q.scales = reinterpret_cast<float*>(storage);
  q.weights = q.scales + heads * groups;
  q.doubled = reinterpret_cast<int8_t*>(q.weights + heads);
  const int64_t bytes = packed_row_bytes(RowFormat::q4x, p.columns);
  const uint8_t* packed = p.q + row * heads * bytes;
  for (int i = threadIdx.x; i < heads * columns; i += kThreads) {
    const uint8_t byte = packed[i / columns * bytes + i % columns / 2];
    q.doubled[i] = static_cast<int8_t>(twice(i % 2 == 0 ? byte & 15 : byte >> 4));
  }
  for (int i = threadIdx.x; i < heads * groups; i += kThreads) {
    q.scales[i] = 0.25f * e8m0_to_float(packed[i / groups * bytes + columns / 2 + i % groups]);
  }
  for (int h = threadIdx.x; h < heads; h += kThreads) {
    q.weights[h] = __fmul_rn(widen(p.head_weights[row * heads + h]), p.head_weight_scale);
  }
  return q;
}

__device__ float score_key(const IndexScoreParams& p, const SharedQuery& q, const uint8_t* key) {
  const int columns = static_cast<int>(p.columns), groups = columns / static_cast<int>(kQ4xGroup);
  constexpr int kGroup = static_cast<int>(kQ4xGroup);
  const bool round = p.mode == IndexScoreMode::bf16;
  float score = 0;
  for (int h = 0; h < p.heads; ++h) {
    float dot = 0;
    for (int g = 0; g < groups; ++g) {
      const int8_t* query = q.doubled + h * columns + g * kGroup;
      int sum = 0;
#pragma unroll 4
      for (int i = 0; i < kGroup; i += 2) {
        const uint32_t byte = key[(g * kGroup + i) / 2];
        sum += query[i] * twice(byte & 15) + query[i + 1] * twice(byte >> 4);
      }
      const float scaled = __fmul_rn(static_cast<float>(sum), e8m0_to_float(key[columns / 2 + g]));
      dot = fmaf(scaled, q.scales[h * groups + g], dot);
    }
    if (round) dot = round_to_bf16(dot);
    const float product = __fmul_rn(fmaxf(dot, 0.0f), q.weights[h]);
    score = __fadd_rn(score, round ? round_to_bf16(product) : product);
  }
  return round ? round_to_bf16(score) : score;
}

/// Keys [blockIdx.x * kThreads, ...) of row blockIdx.y.
__global__ void __launch_bounds__(kThreads) index_score_kernel(IndexScoreParams p) {
  extern __shared__ uint8_t storage[];
  const int64_t row = blockIdx.y;
  const SharedQuery q = expand_query(p, row, storage);
  __syncthreads();
  const int64_t j = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (j >= p.score_stride) return;
  bool shown = j < p.visible[row];
  if (shown && p.mask != nullptr) {
    shown = (p.mask[row * p.mask_stride + j / 32] >> (j % 32) & 1u) != 0;
  }
  float score = -__int_as_float(0x7f800000);
  if (shown) {
    score = score_key(p, q, paged_row(p.keys, p.sequences[row], j));
  }
  p.scores[row * p.score_stride + j] = score;
}

}  // namespace

Status index_score(KernelContext& ctx, const IndexScoreParams& p) {
  if (p.score_stride == 0) return {};
  if (on_hopper(ctx) && fits_tiles(p)) return index_score_tiles(ctx, p);
  const int64_t groups = p.columns / kQ4xGroup;
  const auto shared =
      static_cast<size_t>(p.heads * (groups + 1) * int64_t{sizeof(float)} + p.heads * p.columns);
  CEDAR_CHECK_OK(allow_shared("index_score", index_score_kernel, shared));
  const dim3 grid(static_cast<unsigned>(ceil_div(p.score_stride, kThreads)),
                  static_cast<unsigned>(p.rows));
  index_score_kernel<<<grid, kThreads, shared, stream_of(ctx)>>>(p);
  return launched("index_score");
}

}  // namespace cedar::kernels::cuda
