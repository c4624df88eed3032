#include <algorithm>

#include "kernels/cuda/cluster_sum.h"
#include "kernels/cuda/coded_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/level.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/many_rows.h"
#include "kernels/cuda/store_tile.h"
#include "kernels/cuda/tensor_map.h"

namespace cedar::kernels::cuda {
namespace {

struct Args {
  CUtensorMap x;
  // Tiles of 64 outputs from first_tile on are this weight's.
  struct Part {
    const uint8_t* weight;
    LinearOutput out;
    float scale;
    int outputs, first_tile;
  };
  Part parts_of_y[2];
  int rows, inputs, tiles;
  int parts;   // of the inputs, see input_parts()
  bool early;  // the launch starts early; otherwise weights that come first would only delay x
};

__device__ __forceinline__ const Args::Part& part_of(const Args& a, int tile) {
  return a.parts_of_y[tile < a.parts_of_y[1].first_tile ? 0 : 1];
}

/// Stores a tile's sums where its weight's outputs go.
template <int kGroups, class Take>
__device__ __forceinline__ void store_part(const Args& a, const float (&sums)[4 * kGroups],
                                           int tile, int first_row, const Take& take) {
  if (tile >= a.tiles) return;
  const Args::Part& part = part_of(a, tile);
  store_tile<kGroups>(part.out, sums, part.scale, (tile - part.first_tile) * kTileRows,
                      part.outputs, first_row, a.rows, take);
}

/// The producer's part for a block whose tiles of 64 outputs begin with `first_tile`. Tiles beyond the last
/// one are that one again, and not written.
template <class Product, bool kFp4, class Wait, class Ring>
__device__ __forceinline__ void produce(const Args& a, const Ring& ring, int first_tile,
                                        int first_row, int first, int last) {
  const int64_t tile_bytes = stage_count(a.inputs) * block_bytes(kFp4);
  const auto tile_at = [&](int i) {
    const int tile = min(first_tile + i, a.tiles - 1);
    const Args::Part& part = part_of(a, tile);
    return part.weight + (tile - part.first_tile) * tile_bytes;
  };
  Product::produce(ring, a.x, first_row, tile_at, first, last, 0, Wait());
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
#if CEDAR_HOPPER_CODE
  using Config = FewRows<kFp4, kColumns>;
  using Product = typename Config::Product;
  extern __shared__ uint8_t shared[];
  if (a.parts == 1) let_next_launch_start();
  const typename Config::Ring ring(shared);
  const int stages = static_cast<int>(stage_count(a.inputs));
  const int part = blockIdx.z;
  const int first = stages * part / a.parts, last = stages * (part + 1) / a.parts;
  const int first_row = blockIdx.y * kColumns, first_tile = blockIdx.x * Config::kWarpgroups;
  typename Product::Sums sums = {};
  if (threadIdx.x >= Config::kConsumers) {
    if (threadIdx.x == Config::kConsumers) {
      if (a.early) {
        produce<Product, kFp4, LaunchBefore>(a, ring, first_tile, first_row, first, last);
      } else {
        produce<Product, kFp4, XIsThere>(a, ring, first_tile, first_row, first, last);
      }
    }
    __syncwarp();
  } else {
    Product::run(sums, first, last, ring, 0);
  }
  let_next_launch_start();
  sum_over_cluster<kColumns / 8>(
      sums[0], reinterpret_cast<float*>(shared + Config::Ring::kFreeOffset), Config::kConsumers);
  if (threadIdx.x < Config::kConsumers) {
    store_part<kColumns / 8>(a, sums[0], first_tile + static_cast<int>(threadIdx.x / 128),
                             first_row, [](int j) { return owns_group(j); });
  }
  __syncwarp();
  leave_cluster();
#endif
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
#if CEDAR_HOPPER_CODE
  using Config = ManyRows<kFp4, kTiles, kInParts>;
  using Product = typename Config::Product;
  extern __shared__ uint8_t shared[];
  const typename Config::Ring ring(shared);
  constexpr int kBand = 8;
  const int row_tiles = (a.rows + Config::kColumns - 1) / Config::kColumns;
  constexpr int kBlockTiles = Config::kOutputs / kTileRows;
  const int output_tiles = (a.tiles + kBlockTiles - 1) / kBlockTiles;
  const int band = blockIdx.x / (kBand * output_tiles),
            within = blockIdx.x % (kBand * output_tiles);
  const int band_rows = min(kBand, row_tiles - band * kBand);
  const int first_row = (band * kBand + within % band_rows) * Config::kColumns;
  const int block_tile = within / band_rows * (Config::kWarpgroups * kTiles);
  const int stages = static_cast<int>(stage_count(a.inputs));
  if (threadIdx.x >= Config::kConsumers) {
    give_registers<40>();
    if (threadIdx.x == Config::kConsumers) {
      produce<Product, kFp4, XIsThere>(a, ring, block_tile, first_row, 0, stages);
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
    // The ring's slots have been read once both warpgroups are here.
    sync_warps(3, Config::kConsumers);
    const int group = static_cast<int>(threadIdx.x / 128);
    static_assert(Config::kWarpgroups * TileStore::kBytes <=
                  Config::Ring::kSlotBytes * Config::kRing);
    const TileStore out(
        shared_address(shared) + Config::Ring::kFreeOffset + group * TileStore::kBytes, 1 + group);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int tile = first_tile + i;
      if (tile >= a.tiles) break;
      const Args::Part& part = part_of(a, tile);
      out.store(part.out, sums[i], part.scale, (tile - part.first_tile) * kTileRows, part.outputs,
                first_row, a.rows);
    }
  }
#endif
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
  const dim3 grid(static_cast<unsigned>(ceil_div(a.tiles, Config::kWarpgroups)),
                  static_cast<unsigned>(ceil_div(a.rows, kColumns)),
                  static_cast<unsigned>(a.parts));
  const Start start = start_of(grid, Config::kResident);
  a.early = start == Start::early;
  return launch_clusters("linear", multiply_few<kFp4, kColumns>, grid, a.parts, Config::kThreads,
                         Config::Ring::kSharedBytes, stream, start, a);
}

template <bool kFp4, int kTiles, bool kInParts>
Status many(cudaStream_t stream, Args& a, const Bf16* x) {
  using Config = ManyRows<kFp4, kTiles, kInParts>;
  CEDAR_CHECK_OK(map_x(a, x, Config::kColumns));
  const int64_t blocks =
      ceil_div(a.rows, Config::kColumns) * ceil_div(a.tiles, Config::kOutputs / kTileRows);
  return launch_clusters("linear", multiply_many<kFp4, kTiles, kInParts>,
                         dim3(static_cast<unsigned>(blocks)), 1, Config::kThreads,
                         Config::Ring::kSharedBytes, stream, Start::in_turn, a);
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
  const int64_t large = ceil_div(row_tiles * ceil_div(a.tiles, 4), device) * 18;
  const int64_t small = ceil_div(row_tiles * ceil_div(a.tiles, 2), device) * 10;
  return large <= small ? many<kFp4, 2, false>(stream, a, x) : many<kFp4, 1, false>(stream, a, x);
}

}  // namespace

Status linear_coded(KernelContext& ctx, const PackedWeight& weight, const Bf16* x, int64_t rows,
                    const LinearOutput& out, const SecondLinear& second) {
  Args a{};
  a.tiles = static_cast<int>(tile_count(weight.out));
  a.parts_of_y[0] = {weight.codes.as<uint8_t>(), out, weight.output_scale,
                     static_cast<int>(weight.out), 0};
  a.parts_of_y[1].first_tile = a.tiles;
  if (second.weight != nullptr) {
    const PackedWeight& other = *second.weight;
    a.parts_of_y[1] = {other.codes.as<uint8_t>(), second.out, other.output_scale,
                       static_cast<int>(other.out), a.tiles};
    a.tiles += static_cast<int>(tile_count(other.out));
  }
  a.rows = static_cast<int>(rows);
  a.inputs = static_cast<int>(weight.in);
  a.parts = input_parts(a.tiles, stage_count(weight.in));
  return is_fp4(weight.format) ? multiply<true>(stream_of(ctx), a, x)
                               : multiply<false>(stream_of(ctx), a, x);
}

}  // namespace cedar::kernels::cuda
