#include "kernels/cuda/async_copy.h"
#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/pack_row.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/rows.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 128;

__device__ uint8_t* destination(const KvWriteParams& p, int64_t row) {
  if (p.dense != nullptr) return p.dense + row * packed_row_bytes(p.format, p.columns);
  const int64_t j = p.target_rows[row];
  return j < 0 ? nullptr : paged_row(p.paged, p.sequences[row], j);
}

/// A block of kThreads threads.
template <RowFormat kFormat>
__device__ __forceinline__ void write_row(const KvWriteParams& p, int64_t row, float* partial) {
  uint8_t* target = destination(p, row);
  if (target == nullptr) return;
  const Bf16* x = p.x + row * p.x_stride;
  const int columns = static_cast<int>(p.columns);
  float factor = 1;
  if (p.norm_weight != nullptr) {
    float sum = 0;
    for (int c = threadIdx.x; c < columns; c += kThreads) sum = fmaf(widen(x[c]), widen(x[c]), sum);
    factor = norm_factor(block_sum<kThreads>(sum, partial), columns, p.eps);
  }
  const int first_rotated = columns - static_cast<int>(p.rotary_dim);
  // Whole warps go round together: the group's maximum is exchanged between lanes.
  for (int base = 0; base < columns; base += kThreads * kPackColumns) {
    const int column = base + static_cast<int>(threadIdx.x) * kPackColumns;
    const bool active = column < columns;
    float v[kPackColumns] = {};
    if (active) {
#pragma unroll
      for (int i = 0; i < kPackColumns; ++i) {
        v[i] = widen(x[column + i]);
        if (p.norm_weight != nullptr) {
          v[i] =
              round_to_bf16(__fmul_rn(widen(p.norm_weight[column + i]), __fmul_rn(v[i], factor)));
        }
      }
#pragma unroll
      for (int i = 0; i < kPackColumns; i += 2) {
        const int pair = column + i - first_rotated;
        if (pair < 0) continue;
        const float2 turned =
            rotate(v[i], v[i + 1], rotation(p.positions[row], p.inv_freq[pair / 2], false));
        v[i] = round_to_bf16(turned.x);
        v[i + 1] = round_to_bf16(turned.y);
      }
    }
    pack_columns<kFormat>(v, column, columns, active, target);
  }
}

/// One block a row.
template <RowFormat kFormat>
__global__ void __launch_bounds__(kThreads) kv_write_kernel(KvWriteParams p) {
  __shared__ float partial[kThreads / kWarp];
  write_row<kFormat>(p, blockIdx.x, partial);
}

/// Grid: (rows, 2): the query's half and the window's.
__global__ void __launch_bounds__(kThreads)
    query_window_kernel(const __grid_constant__ QueryWindowParams p) {
  let_next_launch_start();
  __shared__ float partial[kThreads / kWarp];
  const int64_t row = blockIdx.x;
  if (blockIdx.y == 1) {
    write_row<RowFormat::q8>(p.window, row, partial);
    return;
  }
  const RmsNormParams& n = p.norm;
  const Bf16* x = n.x + row * n.x_stride;
  float sum = 0;
  for (int64_t c = threadIdx.x * 8; c < n.columns; c += kThreads * 8) {
    float v[8];
    widen8(load8(x + c), v);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(v[i], v[i], sum);
  }
  const float factor = norm_factor(block_sum<kThreads>(sum, partial), n.columns, n.eps);
  // Whole groups of four lanes go round together: columns are a multiple of 32.
  for (int64_t c = threadIdx.x * 8; c < n.columns; c += kThreads * 8) {
    float v[8], w[8];
    widen8(load8(x + c), v);
    widen8(load8(n.weight + c), w);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = __fmul_rn(w[i], __fmul_rn(v[i], factor));
    store8(p.quantised.values + row * n.columns + c, q8_values_of(round8(v)));
  }
}

/// One block a row.
__global__ void __launch_bounds__(kThreads) ring_write_kernel(RingWriteParams p) {
  keep_window_row(p, blockIdx.x, kThreads);
}

}  // namespace

Status kv_write(KernelContext& ctx, const KvWriteParams& p) {
  const auto blocks = static_cast<unsigned>(p.rows);
  switch (p.format) {
    case RowFormat::q8:
      kv_write_kernel<RowFormat::q8><<<blocks, kThreads, 0, stream_of(ctx)>>>(p);
      break;
    case RowFormat::q4x:
      kv_write_kernel<RowFormat::q4x><<<blocks, kThreads, 0, stream_of(ctx)>>>(p);
      break;
    case RowFormat::q4n:
      kv_write_kernel<RowFormat::q4n><<<blocks, kThreads, 0, stream_of(ctx)>>>(p);
      break;
  }
  return launched("kv_write");
}

Status query_window(KernelContext& ctx, const QueryWindowParams& p) {
  const bool fits = aligned16(p.norm.x) && p.norm.x_stride % 8 == 0 && aligned16(p.norm.weight) &&
                    p.window.format == RowFormat::q8 && p.quantised.values != nullptr;
  if (!fits) {
    return make_error(Errc::invalid_argument, "query_window: x, weight or values not on 16 bytes");
  }
  const dim3 grid(static_cast<unsigned>(p.norm.rows), 2);
  query_window_kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(p);
  return launched("query_window");
}

Status ring_write(KernelContext& ctx, const RingWriteParams& p) {
  ring_write_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream_of(ctx)>>>(p);
  return launched("ring_write");
}

}  // namespace cedar::kernels::cuda
