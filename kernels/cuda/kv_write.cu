#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"
#include "kernels/cuda/pack_row.h"
#include "kernels/cuda/rows.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 128;

__device__ uint8_t* destination(const KvWriteParams& p, int64_t row) {
  if (p.dense != nullptr) return p.dense + row * packed_row_bytes(p.format, p.columns);
  const int64_t j = p.target_rows[row];
  return j < 0 ? nullptr : paged_row(p.paged, p.sequences[row], j);
}

/// One block a row.
template <RowFormat kFormat>
__global__ void __launch_bounds__(kThreads) kv_write_kernel(KvWriteParams p) {
  __shared__ float partial[kThreads / kWarp];
  const int64_t row = blockIdx.x;
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
__global__ void __launch_bounds__(kThreads) ring_write_kernel(RingWriteParams p, bool words) {
  const int64_t row = blockIdx.x;
  const int64_t slot = p.slots[row];
  if (slot < 0) return;
  uint8_t* to = ring_row(p.rings, slot, p.positions[row]);
  const uint8_t* from = p.chunk_rows + row * p.rings.row_bytes;
  if (words) {
    for (int64_t i = threadIdx.x; i < p.rings.row_bytes / 4; i += kThreads) {
      reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
    }
  } else {
    for (int64_t i = threadIdx.x; i < p.rings.row_bytes; i += kThreads) to[i] = from[i];
  }
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

Status ring_write(KernelContext& ctx, const RingWriteParams& p) {
  const bool words = p.rings.row_bytes % 4 == 0 && p.rings.slot_stride_bytes % 4 == 0 &&
                     aligned16(p.rings.base) && aligned16(p.chunk_rows);
  ring_write_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream_of(ctx)>>>(p, words);
  return launched("ring_write");
}

}  // namespace cedar::kernels::cuda
