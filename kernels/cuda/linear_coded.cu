#include <algorithm>

#include "kernels/cuda/cluster_sum.h"
#include "kernels/cuda/coded_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/store_tile.h"
#include "kernels/cuda/tensor_map.h"

namespace cedar::kernels::cuda {
namespace {

struct Args {
  CUtensorMap x;
  const uint8_t* weight;
  LinearOutput out;
  float scale;
  int rows, outputs, inputs;
  int parts;  // of the inputs, see input_parts()
};

/// The producer's part for a block whose tiles of 64 outputs begin with `first_tile`. Tiles beyond the last
/// one are that one again, and not written.
template <class Product, bool kFp4, class Ring>
__device__ __forceinline__ void produce(const Args& a, const Ring& ring, int first_tile,
                                        int first_row, int first, int last) {
  const int64_t tile_bytes = stage_count(a.inputs) * block_bytes(kFp4);
  const int last_tile = static_cast<int>(tile_count(a.outputs)) - 1;
  const auto tile_at = [&](int i) {
    return a.weight + min(first_tile + i, last_tile) * tile_bytes;
  };
  Product::produce(ring, a.x, first_row, tile_at, first, last, 0);
}

/// Memory-bound: blocks enough to hide each other's latencies. With more rows x weighs more than W, and two
/// warpgroups share it.
template <bool kFp4, int kColumns>
struct FewRows {
  static constexpr int kWarpgroups = kColumns >= 32 ? 2 : 1;
  static constexpr int kDepth = kColumns >= 32 ? 1 : kFp4 ? 4 : 2;
  static constexpr int kRing = kColumns >= 32 ? 6 : 4;
  using Product = CodedProduct<kFp4, kColumns, 1, kWarpgroups, kDepth>;
  using Ring = TileRing<Product::kXBytes, Product::kWeightBytes, kRing, 4 * kWarpgroups>;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kResident = kColumns >= 32 ? 2 : kColumns == 8 ? 4 : 3;
};

/// Grid: (tiles of outputs, tiles of kColumns rows, parts of the inputs = cluster).
template <bool kFp4, int kColumns>
__global__ void __launch_bounds__(FewRows<kFp4, kColumns>::kThreads,
                                  FewRows<kFp4, kColumns>::kResident)
    multiply_few(const __grid_constant__ Args a) {
  using Config = FewRows<kFp4, kColumns>;
  using Product = typename Config::Product;
  extern __shared__ uint8_t shared[];
  const typename Config::Ring ring(shared);
  const int stages = static_cast<int>(stage_count(a.inputs));
  const int part = blockIdx.z;
  const int first = stages * part / a.parts, last = stages * (part + 1) / a.parts;
  const int first_row = blockIdx.y * kColumns, first_tile = blockIdx.x * Config::kWarpgroups;
  typename Product::Sums sums = {};
  if (threadIdx.x >= Config::kConsumers) {
    if (threadIdx.x == Config::kConsumers) {
      produce<Product, kFp4>(a, ring, first_tile, first_row, first, last);
    }
    __syncwarp();
  } else {
    Product::run(sums, first, last, ring, 0);
  }
  sum_over_cluster<kColumns / 8>(
      sums[0], reinterpret_cast<float*>(shared + Config::Ring::kFreeOffset), Config::kConsumers);
  if (threadIdx.x < Config::kConsumers) {
    store_tile<kColumns / 8>(a.out, sums[0], a.scale,
                             (first_tile + static_cast<int>(threadIdx.x / 128)) * kTileRows,
                             a.outputs, first_row, a.rows, [](int j) { return owns_group(j); });
  }
  __syncwarp();
  leave_cluster();
}

/// Compute-bound: 128 rows of x against 128 * kTiles outputs, two warpgroups. kInParts: the parts of the
/// inputs are summed one after the other and then added in the order in which a cluster adds them: the same
/// bits as with few rows.
template <bool kFp4, int kTiles, bool kInParts>
struct ManyRows {
  static_assert(!kInParts || kTiles == 1, "the registers hold two tiles of sums");
  static constexpr int kColumns = 128, kWarpgroups = 2, kDepth = 1;
  static constexpr int kOutputs = 64 * kWarpgroups * kTiles;
  using Product = CodedProduct<kFp4, kColumns, kTiles, kWarpgroups, kDepth>;
  static constexpr int kRing = kTiles == 2 ? 6 : 8;
  using Ring = TileRing<Product::kXBytes, Product::kWeightBytes, kRing, 4 * kWarpgroups>;
  static constexpr int kConsumers = 128 * kWarpgroups;
  // The producer has a warpgroup of its own, which leaves most of its registers to the consumers.
  static constexpr int kThreads = kConsumers + 128;
};

/// Grid: all tiles in one dimension. Blocks that run at the same time form a rectangle of 8 tiles of rows, so
/// that what they read of x and W together fits the L2.
template <bool kFp4, int kTiles, bool kInParts>
__global__ void __launch_bounds__(ManyRows<kFp4, kTiles, kInParts>::kThreads, 1)
    multiply_many(const __grid_constant__ Args a) {
  using Config = ManyRows<kFp4, kTiles, kInParts>;
  using Product = typename Config::Product;
  extern __shared__ uint8_t shared[];
  const typename Config::Ring ring(shared);
  constexpr int kBand = 8;
  const int row_tiles = (a.rows + Config::kColumns - 1) / Config::kColumns;
  const int output_tiles = (a.outputs + Config::kOutputs - 1) / Config::kOutputs;
  const int band = blockIdx.x / (kBand * output_tiles),
            within = blockIdx.x % (kBand * output_tiles);
  const int band_rows = min(kBand, row_tiles - band * kBand);
  const int first_row = (band * kBand + within % band_rows) * Config::kColumns;
  const int block_tile = within / band_rows * (Config::kWarpgroups * kTiles);
  const int stages = static_cast<int>(stage_count(a.inputs));
  if (threadIdx.x >= Config::kConsumers) {
    give_registers<40>();
    if (threadIdx.x == Config::kConsumers) {
      produce<Product, kFp4>(a, ring, block_tile, first_row, 0, stages);
    }
  } else {
    take_registers<232>();
    typename Product::Sums sums = {};
    if constexpr (kInParts) {
      typename Product::Sums total;
      for (int part = 0; part < a.parts; ++part) {
        const int first = stages * part / a.parts;
        Product::run(sums, first, stages * (part + 1) / a.parts, ring, first);
#pragma unroll
        for (int i = 0; i < Config::kColumns / 2; ++i) {
          total[0][i] = part == 0 ? sums[0][i] : total[0][i] + sums[0][i];
          sums[0][i] = 0;
        }
      }
#pragma unroll
      for (int i = 0; i < Config::kColumns / 2; ++i) sums[0][i] = total[0][i];
    } else {
      Product::run(sums, 0, stages, ring, 0);
    }
    const int first_tile = block_tile + threadIdx.x / 128 * kTiles;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      store_tile<Config::kColumns / 8>(a.out, sums[i], a.scale, (first_tile + i) * kTileRows,
                                       a.outputs, first_row, a.rows, [](int) { return true; });
    }
  }
}

/// Fills in the map of x for boxes of `columns` rows.
Status map_x(Args& a, const Bf16* x, int columns) {
  CEDAR_TRY(a.x, tensor_map(x, a.rows, a.inputs, a.inputs, columns));
  return {};
}

template <bool kFp4, int kColumns>
Status few(cudaStream_t stream, Args& a, const Bf16* x) {
  using Config = FewRows<kFp4, kColumns>;
  CEDAR_CHECK_OK(map_x(a, x, kColumns));
  const dim3 grid(static_cast<unsigned>(ceil_div(tile_count(a.outputs), Config::kWarpgroups)),
                  static_cast<unsigned>(ceil_div(a.rows, kColumns)),
                  static_cast<unsigned>(a.parts));
  return launch_clusters("linear", multiply_few<kFp4, kColumns>, grid, a.parts, Config::kThreads,
                         Config::Ring::kSharedBytes, stream, a);
}

template <bool kFp4, int kTiles, bool kInParts>
Status many(cudaStream_t stream, Args& a, const Bf16* x) {
  using Config = ManyRows<kFp4, kTiles, kInParts>;
  CEDAR_CHECK_OK(map_x(a, x, Config::kColumns));
  const int64_t blocks = ceil_div(a.rows, Config::kColumns) * ceil_div(a.outputs, Config::kOutputs);
  return launch_clusters("linear", multiply_many<kFp4, kTiles, kInParts>,
                         dim3(static_cast<unsigned>(blocks)), 1, Config::kThreads,
                         Config::Ring::kSharedBytes, stream, a);
}

template <bool kFp4>
Status multiply(cudaStream_t stream, Args& a, const Bf16* x) {
  if (a.rows <= 8) return few<kFp4, 8>(stream, a, x);
  if (a.rows <= 16) return few<kFp4, 16>(stream, a, x);
  if (a.rows <= 32) return few<kFp4, 32>(stream, a, x);
  if (a.rows <= kFewRows) return few<kFp4, 64>(stream, a, x);
  if (a.parts > 1) return many<kFp4, 1, true>(stream, a, x);
  // Large tiles read less for each product, but have to fill the device: compare the waves of blocks, a large
  // tile's time being two of the small ones' less a tenth.
  const int64_t row_tiles = ceil_div(a.rows, 128), device = multiprocessors();
  const int64_t large = ceil_div(row_tiles * ceil_div(a.outputs, 256), device) * 18;
  const int64_t small = ceil_div(row_tiles * ceil_div(a.outputs, 128), device) * 10;
  return large <= small ? many<kFp4, 2, false>(stream, a, x) : many<kFp4, 1, false>(stream, a, x);
}

}  // namespace

Status linear_coded(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t rows,
                    const LinearOutput& out) {
  Args a{};
  a.weight = weight.codes.as<uint8_t>();
  a.out = out;
  a.scale = weight.output_scale;
  a.rows = static_cast<int>(rows);
  a.outputs = static_cast<int>(weight.out);
  a.inputs = static_cast<int>(weight.in);
  a.parts = input_parts(tile_count(weight.out), stage_count(weight.in));
  return is_fp4(weight.format) ? multiply<true>(stream_of(ctx), a, x)
                               : multiply<false>(stream_of(ctx), a, x);
}

}  // namespace cedar::kernels::cuda
