// A thread takes 8 consecutive inputs and four threads a group, so that reads and writes are 16, 8 and 16
// bytes wide.

#include "kernels/cuda/quantize.h"

#include <algorithm>

#include "core/units.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/linear_ops.h"
#include "kernels/cuda/linear_plan.h"

namespace cedar::kernels::cuda {
namespace {

constexpr int kThreads = 256;

/// kWide: rows of x are 16-byte aligned.
template <bool kWide>
__global__ void quantize_rows(const Bf16* x, int64_t x_stride, Q8Rows out, int64_t columns,
                              int64_t pieces) {
  const int64_t piece = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  const int64_t per_row = columns / 8;
  // Whole groups of four threads leave together: columns is a multiple of 32.
  if (piece >= pieces) return;
  const int64_t row = piece / per_row, column = piece % per_row * 8;
  const Bf16* from = x + row * x_stride + column;
  uint32_t words[4];
  if constexpr (kWide) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = static_cast<uint32_t>(from[2 * i].bits) |
                 static_cast<uint32_t>(from[2 * i + 1].bits) << 16;
    }
  }
  float values[8];
  float amax = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    amax = max_magnitude(amax, values[i]);
  }
  const unsigned group = 0xfu << (threadIdx.x & 28);
  amax = fmaxf(amax, __shfl_xor_sync(group, amax, 1));
  amax = fmaxf(amax, __shfl_xor_sync(group, amax, 2));
  const uint32_t scale = q8_scale(amax);
  const float inverse = q8_inverse(scale), unit = q8_value(scale);
  uint32_t codes[4], exact[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes[i] = e4m3_pair(values[2 * i] * inverse, values[2 * i + 1] * inverse);
    exact[i] = e4m3_pair_values(codes[i], unit);
  }
  const int64_t at = row * columns + column;
  if (out.codes != nullptr) {
    *reinterpret_cast<uint2*>(out.codes + at) =
        make_uint2(codes[0] | codes[1] << 16, codes[2] | codes[3] << 16);
    if (threadIdx.x % 4 == 0) out.scales[at / kQ8Group] = static_cast<uint8_t>(scale);
  }
  if (out.values != nullptr) {
    *reinterpret_cast<uint4*>(out.values + at) = make_uint4(exact[0], exact[1], exact[2], exact[3]);
  }
}

__global__ void widen_rows(Q8Rows q, Bf16* values, int64_t pieces) {
  const int64_t piece = blockIdx.x * int64_t{kThreads} + threadIdx.x;
  if (piece >= pieces) return;
  const uint2 codes = *reinterpret_cast<const uint2*>(q.codes + piece * 8);
  const float unit = e8m0_to_float(q.scales[piece / 4]);
  reinterpret_cast<uint4*>(values)[piece] =
      make_uint4(e4m3_pair_values(codes.x & 0xffff, unit), e4m3_pair_values(codes.x >> 16, unit),
                 e4m3_pair_values(codes.y & 0xffff, unit), e4m3_pair_values(codes.y >> 16, unit));
}

bool aligned(const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

}  // namespace

Status quantize_q8(KernelContext& ctx, const QuantizeQ8Params& p) {
  if (!aligned(p.out.codes, 8) || !aligned(p.out.values, 16)) {
    return make_error(Errc::invalid_argument,
                      "quantize_q8: out.codes and out.values must be aligned to 16 bytes");
  }
  const int64_t pieces = p.rows * (p.columns / 8);
  const auto blocks = static_cast<unsigned>(ceil_div(pieces, kThreads));
  if (aligned(p.x, 16) && p.x_stride % 8 == 0) {
    quantize_rows<true>
        <<<blocks, kThreads, 0, stream_of(ctx)>>>(p.x, p.x_stride, p.out, p.columns, pieces);
  } else {
    quantize_rows<false>
        <<<blocks, kThreads, 0, stream_of(ctx)>>>(p.x, p.x_stride, p.out, p.columns, pieces);
  }
  return launched("quantize_q8");
}

Result<const Bf16*> q8_values(KernelContext& ctx, const Q8Rows& q, int64_t rows, int64_t columns) {
  if (q.values != nullptr) return static_cast<const Bf16*>(q.values);
  if (!aligned(q.codes, 8)) {
    return make_error(Errc::invalid_argument, "xq.codes must be aligned to 8 bytes");
  }
  auto* values = ctx.arena->allocate<Bf16>(rows * columns);
  const int64_t pieces = rows * (columns / 8);
  widen_rows<<<static_cast<unsigned>(ceil_div(pieces, kThreads)), kThreads, 0, stream_of(ctx)>>>(
      q, values, pieces);
  CEDAR_CHECK_OK(launched("q8_values"));
  return static_cast<const Bf16*>(values);
}

}  // namespace cedar::kernels::cuda
