#include <algorithm>

#include "kernels/cuda/cluster_sum.h"
#include "kernels/cuda/coded_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/store_tile.h"

namespace cedar::kernels::cuda {
namespace {

struct Args {
  const uint8_t* weight;
  const Bf16* x;
  LinearOutput out;
  float scale;
  int rows, outputs, inputs;
  int parts;  // of the inputs, see input_parts()
};

/// The helpers' part for a block whose tiles of 64 outputs begin with `first_tile`. Tiles beyond the last one are that
/// one again, and not written.
template <class Product, int kDepth, bool kFp4, class Ring>
__device__ __forceinline__ void help(const Args& a, const Ring& ring, int warp, int first_tile,
                                     int first_row, int first, int last) {
  const Bf16* x = a.x + first_row * int64_t{a.inputs};
  const auto row_at = [&](int row) {
    return first_row + row < a.rows ? x + row * int64_t{a.inputs} : nullptr;
  };
  const int64_t tile_bytes = stage_count(a.inputs) * block_bytes(kFp4);
  const int last_tile = static_cast<int>(tile_count(a.outputs)) - 1;
  const auto tile_at = [&](int i) {
    return a.weight + min(first_tile + i, last_tile) * tile_bytes;
  };
  const auto copy_weights = [&](uint32_t to, uint32_t barrier, int stage, int stages) {
    Product::copy_weights(tile_at, to, barrier, stage, stages);
  };
  ring.template help<kDepth>(row_at, copy_weights, warp, a.inputs, first, last, 0);
}

/// Memory-bound: blocks enough to hide each other's latencies. With more rows x weighs more than W, and two warpgroups
/// share it.
template <bool kFp4, int kColumns>
struct FewRows {
  static constexpr int kWarpgroups = kColumns >= 32 ? 2 : 1;
  static constexpr int kDepth = kColumns >= 32 ? 1 : kFp4 ? 4 : 2;
  static constexpr int kRing = kColumns >= 32 ? 6 : 4;
  using Ring = TileRing<kColumns, kDepth, kWarpgroups * kDepth * block_bytes(kFp4), kRing, 1,
                        4 * kWarpgroups>;
  using Product = CodedProduct<kFp4, kColumns, 1, kWarpgroups, kDepth, Ring>;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kThreads = kConsumers + 32 * Ring::kHelperWarps;
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
    help<Product, Config::kDepth, kFp4>(a, ring, (threadIdx.x - Config::kConsumers) / 32,
                                        first_tile, first_row, first, last);
  } else {
    Product::run(sums, first, last, ring, 0);
  }
  sum_over_cluster<kColumns / 8>(sums[0], reinterpret_cast<float*>(shared), Config::kConsumers);
  if (threadIdx.x >= Config::kConsumers) return;
  store_tile<kColumns / 8>(a.out, sums[0], a.scale,
                           (first_tile + static_cast<int>(threadIdx.x / 128)) * kTileRows,
                           a.outputs, first_row, a.rows, [](int j) { return owns_group(j); });
}

/// Compute-bound: 128 rows of x against 128 * kTiles outputs, two warpgroups. kInParts: the parts of the inputs are summed
/// one after the other and then added in the order in which a cluster adds them: the same bits as with few rows.
template <bool kFp4, int kTiles, bool kInParts>
struct ManyRows {
  static_assert(!kInParts || kTiles == 1, "the registers hold two tiles of sums");
  static constexpr int kColumns = 128, kWarpgroups = 2, kDepth = 1;
  static constexpr int kOutputs = 64 * kWarpgroups * kTiles;
  using Ring =
      TileRing<kColumns, kDepth, kWarpgroups * kTiles * block_bytes(kFp4), 6, 3, 4 * kWarpgroups>;
  using Product = CodedProduct<kFp4, kColumns, kTiles, kWarpgroups, kDepth, Ring>;
  static constexpr int kConsumers = 128 * kWarpgroups;
  static constexpr int kThreads = kConsumers + 32 * Ring::kHelperWarps;
  // Two tiles of sums a warpgroup fill the registers: the helpers, a warpgroup of their own, leave most of theirs to the
  // others.
  static constexpr bool kSharesRegisters = kTiles > 1 || kInParts;
};

/// Grid: all tiles in one dimension. Blocks that run at the same time form a rectangle of 8 tiles of rows, so that
/// what they read of x and W together fits the L2.
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
    if constexpr (Config::kSharesRegisters) give_registers<56>();
    help<Product, Config::kDepth, kFp4>(a, ring, (threadIdx.x - Config::kConsumers) / 32,
                                        block_tile, first_row, 0, stages);
  } else {
    if constexpr (Config::kSharesRegisters) take_registers<224>();
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

template <bool kFp4, int kColumns>
Status few(cudaStream_t stream, const Args& a) {
  using Config = FewRows<kFp4, kColumns>;
  const dim3 grid(static_cast<unsigned>(ceil_div(tile_count(a.outputs), Config::kWarpgroups)),
                  static_cast<unsigned>(ceil_div(a.rows, kColumns)),
                  static_cast<unsigned>(a.parts));
  return launch_clusters("linear", multiply_few<kFp4, kColumns>, grid, a.parts, Config::kThreads,
                         Config::Ring::kSharedBytes, stream, a);
}

template <bool kFp4, int kTiles, bool kInParts>
Status many(cudaStream_t stream, const Args& a) {
  using Config = ManyRows<kFp4, kTiles, kInParts>;
  const int64_t blocks = ceil_div(a.rows, Config::kColumns) * ceil_div(a.outputs, Config::kOutputs);
  return launch_clusters("linear", multiply_many<kFp4, kTiles, kInParts>,
                         dim3(static_cast<unsigned>(blocks)), 1, Config::kThreads,
                         Config::Ring::kSharedBytes, stream, a);
}

template <bool kFp4>
Status multiply(cudaStream_t stream, const Args& a) {
  if (a.rows <= 8) return few<kFp4, 8>(stream, a);
  if (a.rows <= 16) return few<kFp4, 16>(stream, a);
  if (a.rows <= 32) return few<kFp4, 32>(stream, a);
  if (a.rows <= kFewRows) return few<kFp4, 64>(stream, a);
  if (a.parts > 1) return many<kFp4, 1, true>(stream, a);
  // Large tiles read less for each product, but have to fill the device: compare the waves of blocks, a large tile's
  // time being two of the small ones' less a tenth.
  const int64_t row_tiles = ceil_div(a.rows, 128), device = multiprocessors();
  const int64_t large = ceil_div(row_tiles * ceil_div(a.outputs, 256), device) * 18;
  const int64_t small = ceil_div(row_tiles * ceil_div(a.outputs, 128), device) * 10;
  return large <= small ? many<kFp4, 2, false>(stream, a) : many<kFp4, 1, false>(stream, a);
}

}  // namespace

Status linear_coded(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t rows,
                    const LinearOutput& out) {
  Args a{};
  a.weight = weight.codes.as<uint8_t>();
  a.x = x;
  a.out = out;
  a.scale = weight.output_scale;
  a.rows = static_cast<int>(rows);
  a.outputs = static_cast<int>(weight.out);
  a.inputs = static_cast<int>(weight.in);
  a.parts = input_parts(tile_count(weight.out), stage_count(weight.in));
  return is_fp4(weight.format) ? multiply<true>(stream_of(ctx), a)
                               : multiply<false>(stream_of(ctx), a);
}

}  // namespace cedar::kernels::cuda
