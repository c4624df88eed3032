#include <algorithm>
#include <string>
#include <utility>

#include "core/device_memory.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/decode.h"
#include "kernels/cuda/linear_ops.h"
#include "kernels/cuda/weight_layout.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int64_t kScaleRows =
    32;  // outputs that share an FP8 scale; also what an error message names
constexpr int32_t kNoBadRow = 0x7fffffff;

struct PackArgs {
  const uint8_t* codes;   // checkpoint layout
  const uint8_t* scales;  // checkpoint layout
  uint8_t* packed;
  int32_t* bad_row;  // the least output with a NaN code, or kNoBadRow
  int64_t out, in, stages;
  int largest_scale;
};

/// Which 16 bytes of which block a thread fills.
struct Piece {
  int64_t tile, stage;
  int index;  // in the block
};

/// The factor of the group of 32 inputs `group` in row `row` of the scales; zero for padding.
__device__ uint32_t factor_code(const PackArgs& a, int top, int64_t rows, int64_t row,
                                int64_t group) {
  const int64_t groups = a.in / 32;
  if (row >= rows || group >= groups) return 0;
  const int code = top + a.scales[row * groups + group] - a.largest_scale;
  return code > 0 ? static_cast<uint32_t>(code) : 0;
}

__device__ uint4 fp8_piece(const PackArgs& a, const Piece& p) {
  uint32_t words[4] = {};
  if (p.index == code_bytes(false) / 16) {
    const int64_t rows = (a.out + kScaleRows - 1) / kScaleRows;
    for (int b = 0; b < 4; ++b) {
      const int64_t row = p.tile * 2 + b / 2, group = p.stage * 2 + b % 2;
      words[0] |= factor_code(a, kTopFactorFp8, rows, row, group) << (8 * b);
    }
    return make_uint4(words[0], 0, 0, 0);
  }
  const int warp = p.index / 64, half = p.index / 32 % 2, g = p.index % 32 / 4, t = p.index % 4;
  for (int w = 0; w < 4; ++w) {
    const int64_t n = p.tile * kTileRows + warp * 16 + g + 8 * (w / 2);
    const int64_t k = p.stage * kStage + half * 32 + 16 * (w % 2) + 2 * t;
    const int offsets[4] = {8, 0, 9, 1};
    for (int b = 0; b < 4; ++b) {
      if (n >= a.out || k + offsets[b] >= a.in) continue;
      const uint32_t code = a.codes[n * a.in + k + offsets[b]];
      if ((code & 0x7f) == 0x7f) atomicMin(a.bad_row, static_cast<int32_t>(n));
      words[w] |= code << (8 * b);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ uint4 fp4_piece(const PackArgs& a, const Piece& p) {
  uint32_t words[4] = {};
  const int first_factor = code_bytes(true) / 16;
  for (int w = 0; w < 4; ++w) {
    if (p.index >= first_factor) {
      const int word = (p.index - first_factor) * 4 + w;  // 8 a warp
      for (int b = 0; b < 4; ++b) {
        const int64_t row = p.tile * kTileRows + word / 8 * 16 + word % 8 + 8 * (b % 2);
        words[w] |= factor_code(a, kTopFactorFp4, a.out, row, p.stage * 2 + b / 2) << (8 * b);
      }
      continue;
    }
    const int warp = p.index / 32, g = p.index % 32 / 4, t = p.index % 4;
    const int64_t n = p.tile * kTileRows + warp * 16 + g + 8 * (w % 2);
    const int64_t k = p.stage * kStage + 32 * (w / 2) + 2 * t;
    uint8_t codes[8];
    for (int c = 0; c < 8; ++c) {
      const int64_t at = k + 8 * (c / 2) + c % 2;
      const int byte = n < a.out && at < a.in ? a.codes[(n * a.in + at) / 2] : 0;
      codes[c] = static_cast<uint8_t>(at % 2 == 0 ? byte & 15 : byte >> 4);
    }
    words[w] = fp4_word(codes);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

/// 16 bytes a thread, grid-stride.
template <bool kFp4>
__global__ void pack(PackArgs a) {
  constexpr int kPieces = block_bytes(kFp4) / 16;
  const int64_t count = tile_count(a.out) * a.stages * kPieces;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t block = i / kPieces;
    const Piece p{block / a.stages, block % a.stages, static_cast<int>(i % kPieces)};
    reinterpret_cast<uint4*>(a.packed)[i] = kFp4 ? fp4_piece(a, p) : fp8_piece(a, p);
  }
}

int64_t row_bytes(WeightFormat format, int64_t in) {
  switch (format) {
    case WeightFormat::bf16: return in * 2;
    case WeightFormat::f32: return in * 4;
    case WeightFormat::fp8_block32: return in;
    case WeightFormat::fp4_group32: return in / 2;
  }
  return 0;
}

int64_t scale_rows(const WeightView& view) {
  return is_fp4(view.format) ? view.out : ceil_div(view.out, kScaleRows);
}

Error has_nan(int64_t out, int64_t in, int64_t row) {
  const int64_t first = row / kScaleRows * kScaleRows;
  return make_error(Errc::invalid_argument,
                    "weight [" + std::to_string(out) + ", " + std::to_string(in) +
                        "] has a NaN code or scale in outputs " + std::to_string(first) + " to " +
                        std::to_string(first + kScaleRows - 1));
}

/// The largest scale of all views; their scales lie in host memory.
Result<int> largest_scale(std::span<const WeightView> stacked, int64_t out) {
  int largest = 0;
  int64_t first = 0;
  for (const WeightView& view : stacked) {
    const int64_t groups = view.in / 32, count = scale_rows(view) * groups;
    const uint8_t* most = std::max_element(view.scales, view.scales + count);
    if (*most == 255) {
      const int64_t row = (most - view.scales) / groups;
      return has_nan(out, view.in, first + (is_fp4(view.format) ? row : row * kScaleRows));
    }
    largest = std::max<int>(largest, *most);
    first += view.out;
  }
  return largest;
}

constexpr int kThreads = 256;
int blocks_for(int64_t count) {
  return static_cast<int>(std::min<int64_t>(ceil_div(count, kThreads), 8192));
}

/// Copies the views' bytes, one after the other.
Status upload(KernelContext& ctx, std::span<const WeightView> stacked, uint8_t* codes,
              uint8_t* scales) {
  for (const WeightView& view : stacked) {
    const int64_t bytes = view.out * row_bytes(view.format, view.in);
    CEDAR_CHECK_OK(copy_to_device(ctx.device, codes, view.data, bytes, ctx.cuda_stream));
    codes += bytes;
    if (scales == nullptr) continue;
    const int64_t count = scale_rows(view) * (view.in / 32);
    CEDAR_CHECK_OK(copy_to_device(ctx.device, scales, view.scales, count, ctx.cuda_stream));
    scales += count;
  }
  return {};
}

Status pack_codes(KernelContext& ctx, std::span<const WeightView> stacked, PackedWeight& packed) {
  constexpr const char* kOp = "pack_weight";
  const bool fp4 = is_fp4(packed.format);
  PackArgs a{};
  a.out = packed.out;
  a.in = packed.in;
  a.stages = stage_count(packed.in);
  CEDAR_TRY(a.largest_scale, largest_scale(stacked, packed.out));
  packed.output_scale = e8m0_to_float(static_cast<uint8_t>(a.largest_scale));

  const int64_t blocks = tile_count(packed.out) * a.stages;
  CEDAR_TRY(packed.codes, Buffer::allocate(ctx.device, blocks * block_bytes(fp4)));
  a.packed = packed.codes.as<uint8_t>();

  const ArenaScope scope(*ctx.arena);
  int64_t scale_count = 0;
  for (const WeightView& view : stacked) scale_count += scale_rows(view) * (view.in / 32);
  auto* codes = ctx.arena->allocate<uint8_t>(packed.out * row_bytes(packed.format, packed.in));
  auto* scales = ctx.arena->allocate<uint8_t>(scale_count);
  a.codes = codes;
  a.scales = scales;
  a.bad_row = ctx.arena->allocate<int32_t>(1);
  CEDAR_CHECK_OK(upload(ctx, stacked, codes, scales));
  int32_t bad_row = kNoBadRow;
  CEDAR_CHECK_OK(copy_to_device(ctx.device, a.bad_row, &bad_row, sizeof bad_row, ctx.cuda_stream));

  const cudaStream_t stream = stream_of(ctx);
  const int64_t count = packed.codes.bytes() / 16;
  if (fp4) {
    pack<true><<<blocks_for(count), kThreads, 0, stream>>>(a);
  } else {
    pack<false><<<blocks_for(count), kThreads, 0, stream>>>(a);
  }
  CEDAR_CHECK_OK(launched(kOp));
  CEDAR_CHECK_OK(copy_to_host(ctx.device, &bad_row, a.bad_row, sizeof bad_row, ctx.cuda_stream));
  CEDAR_CHECK_OK(synchronize(ctx.device, ctx.cuda_stream));
  if (bad_row != kNoBadRow) return has_nan(packed.out, packed.in, bad_row);
  return {};
}

}  // namespace

Result<PackedWeight> pack_weight(KernelContext& ctx, std::span<const WeightView> stacked) {
  PackedWeight packed;
  packed.format = stacked.front().format;
  packed.in = stacked.front().in;
  for (const WeightView& view : stacked) packed.out += view.out;
  if (is_coded(packed.format)) {
    packed.out_padded = align_up(packed.out, kTileRows);
    CEDAR_CHECK_OK(pack_codes(ctx, stacked, packed));
    return std::move(packed);
  }
  packed.out_padded = packed.out;
  const int64_t bytes = packed.out * row_bytes(packed.format, packed.in);
  CEDAR_TRY(packed.codes, Buffer::allocate(ctx.device, bytes));
  CEDAR_CHECK_OK(upload(ctx, stacked, packed.codes.as<uint8_t>(), nullptr));
  CEDAR_CHECK_OK(synchronize(ctx.device, ctx.cuda_stream));
  return std::move(packed);
}

}  // namespace cedar::kernels::cuda
