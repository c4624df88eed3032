#pragma once
// A matrix of bf16 as the copy engine sees it.

#include <cstdint>

#include <cuda.h>

#include "core/float_formats.h"
#include "core/result.h"

namespace cedar::kernels::cuda {

/// Boxes of box_rows x 64 columns of [rows, columns] with `stride` elements from row to row, which lie in
/// shared memory as wgmma.h wants them. What lies outside the matrix arrives as zeros. REQUIRES: `base` on 16
/// bytes, `stride` a multiple of 8, box_rows at most 256. Errors: internal where the driver refuses.
Result<CUtensorMap> tensor_map(const Bf16* base, int64_t rows, int64_t columns, int64_t stride,
                               int box_rows);

}  // namespace cedar::kernels::cuda
