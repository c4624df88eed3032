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
  int parts;  // of the inputs, see input_parts()
};

/// kColumns rows of x against 64 outputs a warpgroup. Six slots: two being read, four being filled.
template <int kColumns, int kWarpgroups>
struct Product {
  static constexpr int kOutputs = 64 * kWarpgroups;
  static constexpr int kConsumers = 128 * kWarpgroups;
  using Ring = RowRing<kOutputs + kColumns, 1, 6, kColumns == 128 ? 3 : 1, 4 * kWarpgroups>;
  static constexpr int kThreads = kConsumers + 32 * Ring::kHelperWarps;

  static __device__ __forceinline__ void help(const Args& a, const Ring& ring, int first_output,
                                              int first_row, int first, int last) {
    const Bf16* w = a.weight + first_output * int64_t{a.inputs};
    const Bf16* x = a.x + first_row * a.x_stride;
    const auto row_at = [&](int row) -> const Bf16* {
      if (row < kOutputs)
        return first_output + row < a.outputs ? w + row * int64_t{a.inputs} : nullptr;
      row -= kOutputs;
      return first_row + row < a.rows ? x + row * a.x_stride : nullptr;
    };
    ring.help(row_at, (threadIdx.x - kConsumers) / 32, a.inputs, first, last, 0);
  }

  /// Stages [first, last), whose numbers are those of the ring's steps from `origin` on.
  static __device__ __forceinline__ void run(float (&sums)[kColumns / 2], const Ring& ring,
                                             int first, int last, int origin) {
    for (int s = first; s < last; ++s) {
      ring.wait(s - origin);
      const uint32_t slot = ring.slot(s - origin);
      const uint64_t w = tile_descriptor(slot + threadIdx.x / 128 * 8192);
      const uint64_t x = tile_descriptor(slot + kOutputs * 128);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        Wgmma<kColumns>::ss(sums, w + descriptor_step(j), x + descriptor_step(j));
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (s > first) ring.release(s - 1 - origin);
    }
    wgmma_wait<0>();
    settle(sums);
    ring.release(last - 1 - origin);
  }
};

/// Few rows. Grid: (tiles of outputs, tiles of kColumns rows, parts of the inputs = cluster).
template <int kColumns>
__global__ void __launch_bounds__(Product<kColumns, 1>::kThreads)
    multiply_few(const __grid_constant__ Args a) {
  using P = Product<kColumns, 1>;
  extern __shared__ uint8_t shared[];
  const typename P::Ring ring(shared);
  const int stages = static_cast<int>(stage_count(a.inputs));
  const int part = blockIdx.z;
  const int first = stages * part / a.parts, last = stages * (part + 1) / a.parts;
  const int first_row = blockIdx.y * kColumns, first_output = blockIdx.x * P::kOutputs;
  float sums[kColumns / 2] = {};
  if (threadIdx.x >= P::kConsumers) {
    P::help(a, ring, first_output, first_row, first, last);
  } else {
    P::run(sums, ring, first, last, first);
  }
  sum_over_cluster<kColumns / 8>(sums, reinterpret_cast<float*>(shared), P::kConsumers);
  if (threadIdx.x >= P::kConsumers) return;
  store_tile<kColumns / 8>(a.out, sums, 1.0f, first_output, a.outputs, first_row, a.rows,
                           [](int j) { return owns_group(j); });
}

/// Many rows, two warpgroups. Grid: (tiles of outputs, tiles of rows). The parts of the inputs are summed one after the
/// other and then added in the order in which a cluster adds them: the same bits as with few rows.
__global__ void __launch_bounds__(Product<128, 2>::kThreads)
    multiply_many(const __grid_constant__ Args a) {
  using P = Product<128, 2>;
  extern __shared__ uint8_t shared[];
  const typename P::Ring ring(shared);
  const int stages = static_cast<int>(stage_count(a.inputs));
  const int first_row = blockIdx.y * 128, first_output = blockIdx.x * P::kOutputs;
  if (threadIdx.x >= P::kConsumers) {
    P::help(a, ring, first_output, first_row, 0, stages);
    return;
  }
  float total[64];
  for (int part = 0; part < a.parts; ++part) {
    float sums[64] = {};
    P::run(sums, ring, stages * part / a.parts, stages * (part + 1) / a.parts, 0);
#pragma unroll
    for (int i = 0; i < 64; ++i) total[i] = part == 0 ? sums[i] : total[i] + sums[i];
  }
  store_tile<16>(a.out, total, 1.0f, first_output + static_cast<int>(threadIdx.x / 128) * 64,
                 a.outputs, first_row, a.rows, [](int) { return true; });
}

template <int kColumns>
Status few(cudaStream_t stream, const Args& a) {
  using P = Product<kColumns, 1>;
  const dim3 grid(static_cast<unsigned>(ceil_div(a.outputs, P::kOutputs)),
                  static_cast<unsigned>(ceil_div(a.rows, kColumns)),
                  static_cast<unsigned>(a.parts));
  return launch_clusters("linear", multiply_few<kColumns>, grid, a.parts, P::kThreads,
                         P::Ring::kSharedBytes, stream, a);
}

Status many(cudaStream_t stream, const Args& a) {
  using P = Product<128, 2>;
  const dim3 grid(static_cast<unsigned>(ceil_div(a.outputs, P::kOutputs)),
                  static_cast<unsigned>(ceil_div(a.rows, 128)));
  return launch_clusters("linear", multiply_many, grid, 1, P::kThreads, P::Ring::kSharedBytes,
                         stream, a);
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
  a.parts = input_parts(ceil_div(weight.out, kTileRows), stage_count(weight.in));
  const cudaStream_t stream = stream_of(ctx);
  if (rows <= 8) return few<8>(stream, a);
  if (rows <= 16) return few<16>(stream, a);
  if (rows <= 32) return few<32>(stream, a);
  if (rows <= kFewRows) return few<64>(stream, a);
  return many(stream, a);
}

}  // namespace cedar::kernels::cuda
