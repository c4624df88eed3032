// Row-wise loops for x86-64-v2, registers of 16 bytes. See simd.h.

#define CEDAR_ISA portable
#define CEDAR_SIMD_BYTES 16
#define CEDAR_ROW_KERNELS kRowKernelsPortable

#include "kernels/cpu/row_kernels.h"

#include "kernels/cpu/exp.h"

// In this order: each of these groups builds on the one before.
#include "kernels/cpu/simd.h"

#include "kernels/cpu/simd_bf16.h"

#include "kernels/cpu/simd_bytes.h"

#include "kernels/cpu/rows_math.h"

#include "kernels/cpu/rows_attention.h"
#include "kernels/cpu/rows_hc.h"
#include "kernels/cpu/rows_index.h"
#include "kernels/cpu/rows_quantize.h"
#include "kernels/cpu/rows_select.h"

#include "kernels/cpu/row_kernels_body.h"
