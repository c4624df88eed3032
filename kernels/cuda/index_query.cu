#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/pack_row.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// One block a row; a group of 32 columns takes eight neighbouring threads.
__global__ void __launch_bounds__(kThreads) index_query_kernel(IndexQueryParams p) {
  extern __shared__ float2 table[];  // [pairs]
  const int pairs = static_cast<int>(p.rotary_dim / 2);
  const int64_t row = blockIdx.x;
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    table[i] = rotation(p.positions[row], p.inv_freq[i], false);
  }
  __syncthreads();
  const int columns = static_cast<int>(p.columns);
  const int first_rotated = columns - static_cast<int>(p.rotary_dim);
  const int count = static_cast<int>(p.heads) * columns;
  const int64_t head_bytes = packed_row_bytes(RowFormat::q4x, p.columns);
  const Bf16* q = p.q + row * count;
  uint8_t* packed = p.packed + row * p.heads * head_bytes;
  for (int base = 0; base < count; base += kThreads * kPackColumns) {
    const int at = base + static_cast<int>(threadIdx.x) * kPackColumns;
    const bool active = at < count;
    const int column = at % columns;
    float v[kPackColumns] = {};
    if (active) {
#pragma unroll
      for (int i = 0; i < kPackColumns; i += 2) {
        v[i] = widen(q[at + i]);
        v[i + 1] = widen(q[at + i + 1]);
        const int pair = column + i - first_rotated;
        if (pair < 0) continue;
        const float2 turned = rotate(v[i], v[i + 1], table[pair / 2]);
        v[i] = round_to_bf16(turned.x);
        v[i + 1] = round_to_bf16(turned.y);
      }
    }
    pack_columns<RowFormat::q4x>(v, column, columns, active, packed + at / columns * head_bytes);
  }
}

}  // namespace

Status index_query(KernelContext& ctx, const IndexQueryParams& p) {
  const size_t shared = static_cast<size_t>(p.rotary_dim / 2) * sizeof(float2);
  index_query_kernel<<<static_cast<unsigned>(p.rows), kThreads, shared, stream_of(ctx)>>>(p);
  return launched("index_query");
}

}  // namespace cedar::kernels::cuda
