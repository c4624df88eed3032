#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/device_math.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// All threads of the block, in pieces as wide as the pointers and the count allow.
__device__ void copy_bytes(void* to, const void* from, int64_t bytes) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) |
                         static_cast<uintptr_t>(bytes);
  if (bits % 16 == 0) {
    for (int64_t i = threadIdx.x; i < bytes / 16; i += kThreads) {
      static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
    }
  } else if (bits % 4 == 0) {
    for (int64_t i = threadIdx.x; i < bytes / 4; i += kThreads) {
      static_cast<uint32_t*>(to)[i] = static_cast<const uint32_t*>(from)[i];
    }
  } else {
    for (int64_t i = threadIdx.x; i < bytes; i += kThreads) {
      static_cast<uint8_t*>(to)[i] = static_cast<const uint8_t*>(from)[i];
    }
  }
}

/// Copy blockIdx.y of row blockIdx.x.
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedParams p) {
  const int64_t row = blockIdx.x;
  const int64_t image = p.override_index != nullptr ? p.override_index[row] : -1;
  const Bf16* source =
      image >= 0 ? p.override_rows + image * p.d : p.table + int64_t{p.ids[row]} * p.d;
  copy_bytes(p.x + (row * p.copies + blockIdx.y) * p.d, source, p.d * int64_t{sizeof(Bf16)});
}

template <bool kScatter>
__global__ void __launch_bounds__(kThreads) move_rows_kernel(GatherRowsParams p) {
  const int64_t row = blockIdx.x;
  const int64_t other = p.index[row];
  if (other < 0) return;
  const int64_t from = (kScatter ? row : other) * p.row_bytes;
  const int64_t to = (kScatter ? other : row) * p.row_bytes;
  copy_bytes(static_cast<std::byte*>(p.dst) + to, static_cast<const std::byte*>(p.src) + from,
             p.row_bytes);
}

}  // namespace

Status embed(KernelContext& ctx, const EmbedParams& p) {
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>(p.copies));
  embed_kernel<<<grid, kThreads, 0, stream_of(ctx)>>>(p);
  return launched("embed");
}

Status gather_rows(KernelContext& ctx, const GatherRowsParams& p) {
  move_rows_kernel<false><<<static_cast<unsigned>(p.rows), kThreads, 0, stream_of(ctx)>>>(p);
  return launched("gather_rows");
}

Status scatter_rows(KernelContext& ctx, const GatherRowsParams& p) {
  move_rows_kernel<true><<<static_cast<unsigned>(p.rows), kThreads, 0, stream_of(ctx)>>>(p);
  return launched("scatter_rows");
}

}  // namespace cedar::kernels::cuda
