// bf16 weights need no decoding: W and x both come through the ring, and wgmma reads both from shared memory.

#include "kernels/cuda/cluster_sum.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/row_ring.h"
#include "kernels/cuda/store_tile.h"
#include "kernels/cuda/weight_layout.h"
#include "kernels/cuda/wgmma.h"

namespace cedar::kernels::cuda {
namespace {

struct Args {
  const Bf16* weight;
  const Bf16* x;
  int64_t x_stride;
  LinearOutput out;
  int rows, outputs, inputs;
};

/// kColumns rows of x against 64 outputs a warpgroup. Six slots: two being read, four being filled.
template <int kColumns, int kWarpgroups>
struct Product {
  static constexpr int kOutputs = 64 * kWarpgroups, kProducerWarps = 4;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kThreads = kConsumers + 32 * kProducerWarps;
  using Ring = RowRing<kOutputs + kColumns, 1, 6, kProducerWarps, 4 * kWarpgroups>;

  static __device__ __forceinline__ void produce(const Args& a, const Ring& ring, int first_output,
                                                 int first_row, int first, int last) {
    const Bf16* w = a.weight + first_output * int64_t{a.inputs};
    const Bf16* x = a.x + first_row * a.x_stride;
    const auto row_at = [&](int row) -> const Bf16* {
      if (row < kOutputs)
        return first_output + row < a.outputs ? w + row * int64_t{a.inputs} : nullptr;
      row -= kOutputs;
      return first_row + row < a.rows ? x + row * a.x_stride : nullptr;
    };
    ring.produce(row_at, (threadIdx.x - kConsumers) / 32, a.inputs, first, last, 0);
  }

  static __device__ __forceinline__ void run(float (&sums)[kColumns / 2], const Ring& ring,
                                             int first, int last) {
    const int steps = last - first;
    for (int s = 0; s < steps; ++s) {
      ring.wait(s);
      const uint32_t slot = ring.slot(s);
      const uint64_t w = tile_descriptor(slot + threadIdx.x / 128 * 8192);
      const uint64_t x = tile_descriptor(slot + kOutputs * 128);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Wgmma<kColumns>::ss(sums, w + descriptor_step(j), x + descriptor_step(j));
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (s > 0) ring.release(s - 1);
    }
    wgmma_wait<0>();
    settle(sums);
  }
};

/// Grid: (tiles of outputs, tiles of kColumns rows, parts of the inputs = cluster).
template <int kColumns, int kWarpgroups>
__global__ void __launch_bounds__(Product<kColumns, kWarpgroups>::kThreads)
    multiply(const __grid_constant__ Args a) {
  using P = Product<kColumns, kWarpgroups>;
  extern __shared__ uint8_t shared[];
  const typename P::Ring ring(shared);
  const int stages = static_cast<int>(stage_count(a.inputs));
  const int part = blockIdx.z, parts = gridDim.z;
  const int first = stages * part / parts, last = stages * (part + 1) / parts;
  const int first_row = blockIdx.y * kColumns, first_output = blockIdx.x * P::kOutputs;
  float sums[kColumns / 2] = {};
  if (threadIdx.x >= P::kConsumers) {
    P::produce(a, ring, first_output, first_row, first, last);
  } else {
    P::run(sums, ring, first, last);
  }
  sum_over_cluster<kColumns / 8>(sums, reinterpret_cast<float*>(shared), P::kConsumers);
  if (threadIdx.x >= P::kConsumers) return;
  store_tile<kColumns / 8>(a.out, sums, 1.0f,
                           first_output + static_cast<int>(threadIdx.x / 128) * 64, a.outputs,
                           first_row, a.rows, [](int j) { return owns_group(j); });
}

template <int kColumns, int kWarpgroups>
Status launch(cudaStream_t stream, const Args& a) {
  using P = Product<kColumns, kWarpgroups>;
  const int64_t tiles = ceil_div(a.outputs, P::kOutputs);
  const int parts = kWarpgroups == 1 ? input_parts(tiles, stage_count(a.inputs)) : 1;
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(ceil_div(a.rows, kColumns)),
                  static_cast<unsigned>(parts));
  return launch_clusters("linear", multiply<kColumns, kWarpgroups>, grid, parts, P::kThreads,
                         P::Ring::kSharedBytes, stream, a);
}

}  // namespace

Status linear_bf16(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t x_stride,
                   int64_t rows, const LinearOutput& out) {
  Args a{};
  a.weight = weight.codes.as<Bf16>();
  a.x = x;
  a.x_stride = x_stride;
  a.out = out;
  a.rows = static_cast<int>(rows);
  a.outputs = static_cast<int>(weight.out);
  a.inputs = static_cast<int>(weight.in);
  const cudaStream_t stream = stream_of(ctx);
  if (rows <= 8) return launch<8, 1>(stream, a);
  if (rows <= 16) return launch<16, 1>(stream, a);
  if (rows <= 32) return launch<32, 1>(stream, a);
  if (rows <= kFewRows) return launch<64, 1>(stream, a);
  return launch<128, 2>(stream, a);
}

}  // namespace cedar::kernels::cuda
