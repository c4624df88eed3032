#include "kernels/cuda/plain_products.h"

#include "core/units.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/weight_layout.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 128;  // a warp for each 16 outputs of a tile
constexpr int kGroups = kPlainColumns / 8;

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Operands of 32 inputs (half kHalf of a stage) of this lane's outputs.
template <bool kFp4, int kHalf>
__device__ __forceinline__ void decode_half(const uint8_t* block, uint32_t (&a)[2][4]) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  if constexpr (kFp4) {
    const uint4 codes = *reinterpret_cast<const uint4*>(block + warp * 512 + lane * 16);
    const uint32_t factors =
        *reinterpret_cast<const uint32_t*>(block + code_bytes(true) + warp * 32 + lane / 4 * 4);
    uint32_t pairs[4];
    decode_fp4(kHalf == 0 ? codes.x : codes.z, factor_pair<2 * kHalf>(factors), pairs);
    a[0][0] = pairs[0], a[0][2] = pairs[1], a[1][0] = pairs[2], a[1][2] = pairs[3];
    decode_fp4(kHalf == 0 ? codes.y : codes.w, factor_pair<2 * kHalf + 1>(factors), pairs);
    a[0][1] = pairs[0], a[0][3] = pairs[1], a[1][1] = pairs[2], a[1][3] = pairs[3];
  } else {
    const uint4 codes =
        *reinterpret_cast<const uint4*>(block + warp * 1024 + kHalf * 512 + lane * 16);
    const uint32_t factors =
        *reinterpret_cast<const uint16_t*>(block + code_bytes(false) + warp / 2 * 2);
    const uint32_t factor = factor_pair<kHalf>(factors);
    decode_fp8(codes.x, factor, a[0][0], a[0][2]);
    decode_fp8(codes.y, factor, a[1][0], a[1][2]);
    decode_fp8(codes.z, factor, a[0][1], a[0][3]);
    decode_fp8(codes.w, factor, a[1][1], a[1][3]);
  }
}

/// Rows of x that a tile multiplies: `count` of them, kPlainColumns at most.
struct PlainRows {
  const Bf16* x;
  int64_t stride;
  int count, inputs;

  /// Two neighbouring inputs of a row; zeros where there is none.
  __device__ __forceinline__ uint32_t pair(int row, int input) const {
    if (row >= count || input >= inputs) return 0;
    return *reinterpret_cast<const uint32_t*>(x + row * stride + input);
  }
};

template <bool kFp4, int kHalf>
__device__ __forceinline__ void multiply_half(float (&sums)[kGroups][4], const uint8_t* block,
                                              const PlainRows& rows, int input) {
  const int lane = threadIdx.x % 32;
  uint32_t a[2][4];
  decode_half<kFp4, kHalf>(block, a);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int at = input + 32 * kHalf + 16 * j + 2 * (lane % 4);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int row = 8 * g + lane / 4;
      multiply(sums[g], a[j], rows.pair(row, at), rows.pair(row, at + 8));
    }
  }
}

/// sums += one tile of 64 outputs, whose blocks begin at `tile`, times the rows. A block of threads.
template <bool kFp4>
__device__ __forceinline__ void multiply_tile(float (&sums)[kGroups][4], const uint8_t* tile,
                                              const PlainRows& rows) {
  const int stages = static_cast<int>(stage_count(rows.inputs));
  for (int s = 0; s < stages; ++s) {
    const uint8_t* block = tile + s * int64_t{block_bytes(kFp4)};
    multiply_half<kFp4, 0>(sums, block, rows, s * kStage);
    multiply_half<kFp4, 1>(sums, block, rows, s * kStage);
  }
}
__device__ __forceinline__ void multiply_tile(bool fp4, float (&sums)[kGroups][4],
                                              const uint8_t* tile, const PlainRows& rows) {
  if (fp4) {
    multiply_tile<true>(sums, tile, rows);
  } else {
    multiply_tile<false>(sums, tile, rows);
  }
}

/// store(row, output, value) for every sum of a tile.
template <class Store>
__device__ __forceinline__ void for_each_sum(const float (&sums)[kGroups][4], const Store& store) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      store(8 * g + 2 * (lane % 4) + i % 2, warp * 16 + lane / 4 + i / 2 * 8, sums[g][i]);
    }
  }
}

struct LinearArgs {
  const uint8_t* weight;
  const Bf16* x;
  LinearOutput out;
  float scale;
  int rows, outputs, inputs;
};

/// Grid: (tiles of outputs, tiles of rows).
template <bool kFp4>
__global__ void __launch_bounds__(kThreads) plain_multiply(const __grid_constant__ LinearArgs a) {
  const int first_row = blockIdx.y * kPlainColumns, first_output = blockIdx.x * kTileRows;
  const PlainRows rows{a.x + first_row * int64_t{a.inputs}, a.inputs,
                       min(kPlainColumns, a.rows - first_row), a.inputs};
  float sums[kGroups][4] = {};
  multiply_tile<kFp4>(sums, a.weight + blockIdx.x * stage_count(a.inputs) * block_bytes(kFp4),
                      rows);
  for_each_sum(sums, [&](int row, int output, float sum) {
    if (row >= rows.count || first_output + output >= a.outputs) return;
    const int64_t at = (first_row + row) * a.out.stride + first_output + output;
    if (a.out.f32) {
      static_cast<float*>(a.out.y)[at] = sum * a.scale;
    } else {
      static_cast<Bf16*>(a.out.y)[at] = Bf16(sum * a.scale);
    }
  });
}

struct UpPlain {
  UpArgs up;
  const Bf16* x;  // [slots, d]
};

/// What finish_up() asks of a tile's shape.
struct PlainConfig {
  static constexpr int kColumns = kPlainColumns, kOutputs = kTileRows, kConsumers = kThreads;
  static constexpr int kActivationPitch = kOutputs * 2 + 16;
};

/// Grid: (tiles of the plan, tiles of outputs).
__global__ void __launch_bounds__(kThreads) plain_up(const __grid_constant__ UpPlain a) {
  __shared__ __align__(16) uint8_t shared[kPlainColumns * PlainConfig::kActivationPitch];
  const MoePlan& plan = a.up.plan;
  const int first_output = blockIdx.y * kTileRows;
  if (static_cast<int>(blockIdx.x) >= *plan.tile_count) return;
  const MoeTile& tile = plan.tiles[blockIdx.x];
  if (first_output >= tile.expert.inner) return;
  const PlainRows rows{a.x + tile.first_slot * int64_t{a.up.d}, a.up.d, tile.slots, a.up.d};
  const bool fp4 = tile.expert.fp4 != 0;
  float sums[2][kGroups][4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const ExpertTiles tiles(tile.expert, i, tile.expert.inner, a.up.d);
    multiply_tile(fp4, sums[i], tiles.at(blockIdx.y), rows);
  }
  float flat[2][kPlainColumns / 2];
#pragma unroll
  for (int i = 0; i < kPlainColumns / 2; ++i) {
    flat[0][i] = sums[0][i / 4][i % 4];
    flat[1][i] = sums[1][i / 4][i % 4];
  }
  finish_up<PlainConfig>(a.up, tile, first_output, flat, shared);
}

/// Grid: (tiles of the plan, tiles of outputs).
__global__ void __launch_bounds__(kThreads)
    plain_down(const __grid_constant__ DownArgs a, const Bf16* hidden, int pitch) {
  const MoePlan& plan = a.plan;
  if (static_cast<int>(blockIdx.x) >= *plan.tile_count) return;
  const MoeTile& tile = plan.tiles[blockIdx.x];
  const int inner = tile.expert.inner, first_output = blockIdx.y * kTileRows;
  const PlainRows rows{hidden + tile.first_slot * int64_t{pitch}, pitch, tile.slots, inner};
  const ExpertTiles tiles(tile.expert, 2, a.d, inner);
  float sums[kGroups][4] = {};
  multiply_tile(tile.expert.fp4 != 0, sums, tiles.at(blockIdx.y), rows);
  const float scale = tile.expert.scale[2];
  for_each_sum(sums, [&](int row, int output, float sum) {
    if (row >= rows.count || first_output + output >= a.d) return;
    a.out[(tile.first_slot + row) * int64_t{a.d} + first_output + output] = Bf16(sum * scale);
  });
}

}  // namespace

Status plain_linear_coded(KernelContext& ctx, const PackedWeight& weight, const Bf16* x,
                          int64_t rows, const LinearOutput& out) {
  LinearArgs a{};
  a.weight = weight.codes.as<uint8_t>();
  a.x = x;
  a.out = out;
  a.scale = weight.output_scale;
  a.rows = static_cast<int>(rows);
  a.outputs = static_cast<int>(weight.out);
  a.inputs = static_cast<int>(weight.in);
  const dim3 grid(static_cast<unsigned>(tile_count(weight.out)),
                  static_cast<unsigned>(ceil_div(rows, kPlainColumns)));
  if (is_fp4(weight.format)) {
    plain_multiply<true><<<grid, kThreads, 0, stream_of(ctx)>>>(a);
  } else {
    plain_multiply<false><<<grid, kThreads, 0, stream_of(ctx)>>>(a);
  }
  return launched("linear");
}

Status plain_experts(KernelContext& ctx, const UpArgs& up, const DownArgs& down, const Bf16* x) {
  const auto tiles = static_cast<unsigned>(up.plan.most_tiles());
  const cudaStream_t stream = stream_of(ctx);
  plain_up<<<dim3(tiles, static_cast<unsigned>(ceil_div(up.pitch, kTileRows))), kThreads, 0,
             stream>>>({up, x});
  plain_down<<<dim3(tiles, static_cast<unsigned>(ceil_div(down.d, kTileRows))), kThreads, 0,
               stream>>>(down, up.hidden, up.pitch);
  return launched("moe_experts");
}

}  // namespace cedar::kernels::cuda
