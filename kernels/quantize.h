#pragma once
// The three quantisers of spec/model.md 2.3. Input bf16, groups along the row.
//   Q8  : groups of 32, scale E8M0 = P2(max(amax, 1e-4), 1/448),   element E4M3(x / s)
//   Q4X : groups of 32, scale E8M0 = P2(max(amax, 6*2^-126), 1/6), element E2M1(x / s)
//   Q4N : groups of 16, scale E4M3(max(amax, 6*2^-9) / 6),         element E2M1(x / s)
// Packed rows hold the codes first (two E2M1 a byte, even index low), then the scales.

#include <cstdint>

#include "core/float_formats.h"
#include "kernels/kernel_context.h"

namespace cedar::kernels {

enum class RowFormat : uint8_t { q8, q4x, q4n };

constexpr int64_t kQ8Group = 32;
constexpr int64_t kQ4xGroup = 32;
constexpr int64_t kQ4nGroup = 16;

/// Bytes of one packed row of `columns` elements: 512 -> 528 (q8), 288 (q4n); 128 -> 68 (q4x).
constexpr int64_t packed_row_bytes(RowFormat format, int64_t columns) {
  switch (format) {
    case RowFormat::q8: return columns + columns / kQ8Group;
    case RowFormat::q4x: return columns / 2 + columns / kQ4xGroup;
    case RowFormat::q4n: return columns / 2 + columns / kQ4nGroup;
  }
  return 0;
}

/// Activations of an FP8 or FP4 linear: codes and scales apart, dense.
struct Q8Rows {
  uint8_t* codes = nullptr;   // [rows, columns] E4M3
  uint8_t* scales = nullptr;  // [rows, columns / 32] E8M0
  /// CUDA: [rows, columns] code * scale, exact; what its linears multiply. Null: they make it for the call. Where they are
  /// set, codes and scales may be null there: nothing reads them.
  Bf16* values = nullptr;
};

struct QuantizeQ8Params {
  const Bf16* x = nullptr;  // [rows, x_stride]
  int64_t x_stride = 0;
  Q8Rows out;
  int64_t rows = 0;
  int64_t columns = 0;  // multiple of 32
};
Status quantize_q8(KernelContext& ctx, const QuantizeQ8Params& p);

/// Allocates codes and scales in the context's arena and quantises. The usual way to call it.
Result<Q8Rows> quantize_q8(KernelContext& ctx, const Bf16* x, int64_t rows, int64_t columns);

/// One row, host memory, any of the three formats: the reference path, also used to build test data.
void quantize_row(RowFormat format, const Bf16* x, int64_t columns, uint8_t* packed);
/// bf16(code * scale), exact for all three formats.
void dequantize_row(RowFormat format, const uint8_t* packed, int64_t columns, Bf16* x);

}  // namespace cedar::kernels
