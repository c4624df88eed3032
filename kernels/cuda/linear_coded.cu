#include <algorithm>

#include "kernels/cuda/cluster_sum.h"
#include "kernels/cuda/coded_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/store_tile.h"

namespace cedar::kernels::cuda {
namespace {

struct Args {
  const uint8_t* codes;
  const uint8_t* factors;
  const Bf16* x;
  LinearOutput out;
  float scale;
  int rows, outputs, inputs;
};

template <class Ring>
__device__ __forceinline__ void produce(const Args& a, const Ring& ring, int warp, int first_row,
                                        int first, int last) {
  const Bf16* x = a.x + first_row * int64_t{a.inputs};
  const auto row_at = [&](int row) {
    return first_row + row < a.rows ? x + row * int64_t{a.inputs} : nullptr;
  };
  ring.produce(row_at, warp, a.inputs, first, last, 0);
}

/// Memory-bound. Depths: eight 16-byte loads a thread are under way, and the ring leaves room for three blocks.
template <bool kFp4, int kColumns>
struct FewRows {
  static constexpr int kDepth = kColumns == 64 ? 2 : kColumns == 32 || !kFp4 ? 4 : 8;
  using Product = CodedProduct<kFp4, kColumns, 1, 1, 1, kDepth, 4>;
};

/// Grid: (tiles of 64 outputs, tiles of kColumns rows, parts of the inputs = cluster).
template <bool kFp4, int kColumns>
__global__ void __launch_bounds__(160, 3) multiply_few(const __grid_constant__ Args a) {
  using Product = typename FewRows<kFp4, kColumns>::Product;
  extern __shared__ uint8_t shared[];
  const typename Product::Ring ring(shared);
  const int stages = static_cast<int>(stage_count(a.inputs));
  const int part = blockIdx.z, parts = gridDim.z;
  const int first = stages * part / parts, last = stages * (part + 1) / parts;
  const int first_row = blockIdx.y * kColumns;
  typename Product::Sums sums = {};
  if (threadIdx.x >= Product::kConsumers) {
    produce(a, ring, (threadIdx.x - Product::kConsumers) / 32, first_row, first, last);
  } else {
    const CodedTile tiles[1] = {coded_tile<kFp4>(a.codes, a.factors, blockIdx.x, stages,
                                                 threadIdx.x / 32, threadIdx.x % 32)};
    Product::run(sums, tiles, first, last, ring, 0);
  }
  sum_over_cluster<kColumns / 8>(sums[0], reinterpret_cast<float*>(shared), Product::kConsumers);
  if (threadIdx.x >= Product::kConsumers) return;
  store_tile<kColumns / 8>(a.out, sums[0], a.scale, static_cast<int>(blockIdx.x * kTileRows),
                           a.outputs, first_row, a.rows, [](int j) { return owns_group(j); });
}

/// Compute-bound: 128 rows of x against 128 * kTiles outputs, two warpgroups.
template <bool kFp4, int kTiles>
struct ManyRows {
  static constexpr int kColumns = 128;
  static constexpr int kOutputs = 128 * kTiles;
  // With two tiles a warpgroup the sums fill the registers: the producers, a warpgroup of their own, leave most of theirs
  // to the others.
  using Product = CodedProduct<kFp4, kColumns, kTiles, 2, 4, 1, 6>;
};

/// Grid: all tiles in one dimension. Blocks that run at the same time form a rectangle of 8 tiles of rows, so that
/// what they read of x and W together fits the L2.
template <bool kFp4, int kTiles>
__global__ void __launch_bounds__(ManyRows<kFp4, kTiles>::Product::kThreads, 1)
    multiply_many(const __grid_constant__ Args a) {
  using Config = ManyRows<kFp4, kTiles>;
  using Product = typename Config::Product;
  extern __shared__ uint8_t shared[];
  const typename Product::Ring ring(shared);
  constexpr int kBand = 8;
  const int row_tiles = (a.rows + Config::kColumns - 1) / Config::kColumns;
  const int output_tiles = (a.outputs + Config::kOutputs - 1) / Config::kOutputs;
  const int band = blockIdx.x / (kBand * output_tiles),
            within = blockIdx.x % (kBand * output_tiles);
  const int band_rows = min(kBand, row_tiles - band * kBand);
  const int first_row = (band * kBand + within % band_rows) * Config::kColumns;
  const int output_tile = within / band_rows;
  const int stages = static_cast<int>(stage_count(a.inputs));
  if (threadIdx.x >= Product::kConsumers) {
    if constexpr (kTiles > 1) give_registers<40>();
    produce(a, ring, (threadIdx.x - Product::kConsumers) / 32, first_row, 0, stages);
    return;
  }
  if constexpr (kTiles > 1) take_registers<232>();
  CodedTile tiles[kTiles];
  const int first_tile = output_tile * (2 * kTiles) + threadIdx.x / 128 * kTiles;
  const int last_tile = (a.outputs + kTileRows - 1) / kTileRows - 1;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    // Beyond the last one: computed again, not written.
    tiles[i] = coded_tile<kFp4>(a.codes, a.factors, min(first_tile + i, last_tile), stages,
                                threadIdx.x / 32 % 4, threadIdx.x % 32);
  }
  typename Product::Sums sums = {};
  Product::run(sums, tiles, 0, stages, ring, 0);
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    store_tile<Config::kColumns / 8>(a.out, sums[i], a.scale, (first_tile + i) * int{kTileRows},
                                     a.outputs, first_row, a.rows, [](int) { return true; });
  }
}

template <bool kFp4, int kColumns>
Status few(cudaStream_t stream, const Args& a) {
  using Product = typename FewRows<kFp4, kColumns>::Product;
  const int64_t tiles = ceil_div(a.outputs, kTileRows);
  const int parts = input_parts(tiles, stage_count(a.inputs));
  const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(ceil_div(a.rows, kColumns)),
                  static_cast<unsigned>(parts));
  return launch_clusters("linear", multiply_few<kFp4, kColumns>, grid, parts, Product::kThreads,
                         Product::Ring::kSharedBytes, stream, a);
}

template <bool kFp4, int kTiles>
Status many(cudaStream_t stream, const Args& a) {
  using Config = ManyRows<kFp4, kTiles>;
  const int64_t blocks = ceil_div(a.rows, Config::kColumns) * ceil_div(a.outputs, Config::kOutputs);
  return launch_clusters("linear", multiply_many<kFp4, kTiles>, dim3(static_cast<unsigned>(blocks)),
                         1, Config::Product::kThreads, Config::Product::Ring::kSharedBytes, stream,
                         a);
}

template <bool kFp4>
Status multiply(cudaStream_t stream, const Args& a) {
  if (a.rows <= 8) return few<kFp4, 8>(stream, a);
  if (a.rows <= 16) return few<kFp4, 16>(stream, a);
  if (a.rows <= 32) return few<kFp4, 32>(stream, a);
  if (a.rows <= kFewRows) return few<kFp4, 64>(stream, a);
  // Large tiles read less for each product, but have to fill the device: compare the waves of blocks, a large tile's
  // time being two of the small ones' less a tenth.
  const int64_t row_tiles = ceil_div(a.rows, 128), device = multiprocessors();
  const int64_t large = ceil_div(row_tiles * ceil_div(a.outputs, 256), device) * 18;
  const int64_t small = ceil_div(row_tiles * ceil_div(a.outputs, 128), device) * 10;
  return large <= small ? many<kFp4, 2>(stream, a) : many<kFp4, 1>(stream, a);
}

}  // namespace

Status linear_coded(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t rows,
                    const LinearOutput& out) {
  Args a{};
  a.codes = weight.codes.as<uint8_t>();
  a.factors = weight.scales.as<uint8_t>();
  a.x = x;
  a.out = out;
  a.scale = weight.output_scale;
  a.rows = static_cast<int>(rows);
  a.outputs = static_cast<int>(weight.out);
  a.inputs = static_cast<int>(weight.in);
  return is_fp4(weight.format) ? multiply<true>(stream_of(ctx), a)
                               : multiply<false>(stream_of(ctx), a);
}

}  // namespace cedar::kernels::cuda
