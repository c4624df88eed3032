// Row-wise loops for AVX2 and FMA, registers of 32 bytes. See simd.h.

#define CEDAR_ISA avx2
#define CEDAR_SIMD_BYTES 32
#define CEDAR_ROW_KERNELS kRowKernelsAvx2

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
