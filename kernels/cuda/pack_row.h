#pragma once
// The three quantisers (kernels/quantize.h) for values in registers: four neighbouring columns a thread, the
// threads of a group side by side in a warp. The same bits as quantize_row().

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/cuda/device_math.h"
#include "kernels/quantize.h"

namespace cedar::kernels::cuda {

constexpr int kPackColumns = 4;  // of one thread

__host__ __device__ constexpr int pack_group(RowFormat format) {
  return static_cast<int>(format == RowFormat::q4n ? kQ4nGroup : kQ8Group);
}

__device__ __forceinline__ uint8_t scale_code(RowFormat format, float amax) {
  if (!isfinite(amax)) return format == RowFormat::q4n ? 0x7f : 255;
  switch (format) {
    case RowFormat::q8: return power_of_two_scale(fmaxf(amax, 1e-4f), kReciprocal448);
    case RowFormat::q4x: return power_of_two_scale(fmaxf(amax, 0x1.8p-124f), kReciprocal6);
    case RowFormat::q4n: return float_to_e4m3(__fdiv_rn(fmaxf(amax, 0x1.8p-7f), 6.0f));
  }
  return 0;
}

/// x / scale. A NaN keeps its sign, as it does on processors; the device's division would drop it.
__device__ __forceinline__ float scaled(float x, float scale) {
  return isnan(x) ? x : __fdiv_rn(x, scale);
}

__device__ __forceinline__ void store_bytes(uint8_t* p, uint32_t word, int count) {
  for (int i = 0; i < count; ++i) p[i] = static_cast<uint8_t>(word >> (8 * i));
}

/// Columns [column, column + 4) of a row whose bytes start at `row`. All lanes of the warp call, those past
/// the row's end with `active` false; groups do not cross warps.
template <RowFormat kFormat>
__device__ __forceinline__ void pack_columns(const float (&x)[kPackColumns], int column,
                                             int columns, bool active, uint8_t* row) {
  constexpr int kGroup = pack_group(kFormat);
  constexpr int kLanes = kGroup / kPackColumns;
  float amax = 0;
#pragma unroll
  for (float v : x) amax = isnan(v) ? __int_as_float(0x7f800000) : fmaxf(amax, fabsf(v));
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, step));
  }
  if (!active) return;
  const uint8_t code = scale_code(kFormat, amax);
  const float scale = kFormat == RowFormat::q4n ? e4m3_to_float(code) : e8m0_to_float(code);
  const int code_bytes = kFormat == RowFormat::q8 ? columns : columns / 2;
  if (column % kGroup == 0) row[code_bytes + column / kGroup] = code;
  uint32_t word = 0;
  if constexpr (kFormat == RowFormat::q8) {
#pragma unroll
    for (int i = 0; i < kPackColumns; ++i) {
      word |= static_cast<uint32_t>(float_to_e4m3(scaled(x[i], scale))) << (8 * i);
    }
    uint8_t* to = row + column;
    if (reinterpret_cast<uintptr_t>(to) % 4 == 0) {
      *reinterpret_cast<uint32_t*>(to) = word;
    } else {
      store_bytes(to, word, 4);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPackColumns; ++i) {
      word |= static_cast<uint32_t>(float_to_e2m1(scaled(x[i], scale))) << (4 * i);
    }
    uint8_t* to = row + column / 2;
    if (reinterpret_cast<uintptr_t>(to) % 2 == 0) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(word);
    } else {
      store_bytes(to, word, 2);
    }
  }
}

}  // namespace cedar::kernels::cuda
