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
  uint8_t* factors;
  int32_t* bad_row;  // the least output with a NaN code, or kNoBadRow
  int64_t out, in, stages;
  int largest_scale;
};

__device__ uint8_t factor_code(const PackArgs& a, int top, int64_t scale_row, int64_t group) {
  const int code = top + a.scales[scale_row * (a.in / 32) + group] - a.largest_scale;
  return static_cast<uint8_t>(code > 0 ? code : 0);
}

/// One lane's 16 bytes a thread: grid-stride over (row of 16 outputs, 32 inputs, lane).
__global__ void pack_fp8(PackArgs a) {
  const int64_t groups = 2 * a.stages;
  const int64_t count = align_up(a.out, kTileRows) / 16 * groups * 32;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int lane = static_cast<int>(i % 32), g = lane / 4, t = lane % 4;
    const int64_t group = i / 32 % groups, row = i / 32 / groups * 16;
    uint32_t words[4];
    for (int w = 0; w < 4; ++w) {
      const int64_t n = row + g + 8 * (w / 2), k = group * 32 + 16 * (w % 2) + 2 * t;
      const int offsets[4] = {8, 0, 9, 1};
      words[w] = 0;
      for (int b = 0; b < 4; ++b) {
        if (n >= a.out || k + offsets[b] >= a.in) continue;
        const uint32_t code = a.codes[n * a.in + k + offsets[b]];
        if ((code & 0x7f) == 0x7f) atomicMin(a.bad_row, static_cast<int32_t>(n));
        words[w] |= code << (8 * b);
      }
    }
    reinterpret_cast<uint4*>(a.packed)[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

__global__ void pack_fp8_scales(PackArgs a) {
  const int64_t groups = 2 * a.stages;
  const int64_t count = align_up(a.out, kTileRows) / kScaleRows * groups;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t group = i % groups, row = i / groups;
    const bool inside = group < a.in / 32 && row * kScaleRows < a.out;
    a.factors[i] = inside ? factor_code(a, kTopFactorFp8, row, group) : uint8_t{0};
  }
}

/// One lane's 16 bytes a thread: grid-stride over (row of 16 outputs, stage, lane).
__global__ void pack_fp4(PackArgs a) {
  const int64_t count = align_up(a.out, kTileRows) / 16 * a.stages * 32;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int lane = static_cast<int>(i % 32), g = lane / 4, t = lane % 4;
    const int64_t stage = i / 32 % a.stages, row = i / 32 / a.stages * 16;
    uint32_t words[4];
    for (int w = 0; w < 4; ++w) {
      const int64_t n = row + g + 8 * (w % 2), k = stage * kStage + 32 * (w / 2) + 2 * t;
      uint8_t codes[8];
      for (int c = 0; c < 8; ++c) {
        const int64_t at = k + 8 * (c / 2) + c % 2;
        const bool inside = n < a.out && at < a.in;
        const int byte = inside ? a.codes[(n * a.in + at) / 2] : 0;
        codes[c] = static_cast<uint8_t>(at % 2 == 0 ? byte & 15 : byte >> 4);
      }
      words[w] = fp4_word(codes);
    }
    reinterpret_cast<uint4*>(a.packed)[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

__global__ void pack_fp4_scales(PackArgs a) {
  const int64_t count = align_up(a.out, kTileRows) / 16 * a.stages * 32;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t stage = i / 32 % a.stages, g = i % 32 / 4;
    const int64_t n = i / 32 / a.stages * 16 + g + 8 * (i % 2), group = 2 * stage + i % 4 / 2;
    const bool inside = group < a.in / 32 && n < a.out;
    a.factors[i] = inside ? factor_code(a, kTopFactorFp4, n, group) : uint8_t{0};
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

  const int64_t code_rows = packed.out_padded / 16, factor_rows = code_rows / (fp4 ? 1 : 2);
  CEDAR_TRY(packed.codes, Buffer::allocate(ctx.device, code_rows * code_row_bytes(fp4, a.stages)));
  CEDAR_TRY(packed.scales,
            Buffer::allocate(ctx.device, factor_rows * factor_row_bytes(fp4, a.stages)));
  a.packed = packed.codes.as<uint8_t>();
  a.factors = packed.scales.as<uint8_t>();

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
  if (fp4) {
    const int64_t count = code_rows * a.stages * 32;
    pack_fp4<<<blocks_for(count), kThreads, 0, stream>>>(a);
    pack_fp4_scales<<<blocks_for(count), kThreads, 0, stream>>>(a);
  } else {
    pack_fp8<<<blocks_for(code_rows * a.stages * 64), kThreads, 0, stream>>>(a);
    pack_fp8_scales<<<blocks_for(packed.scales.bytes()), kThreads, 0, stream>>>(a);
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
