// Row-wise loops for AVX-512 with BF16 and VNNI, registers of 64 bytes. See simd.h.

#define CEDAR_ISA avx512
#define CEDAR_SIMD_BYTES 64
#define CEDAR_ROW_KERNELS kRowKernelsAvx512

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
