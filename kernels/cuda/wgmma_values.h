#pragma once
// wgmma.h's instruction with the values of attention as operand b: rows of k, columns side by side in memory.

#include <cstdint>

namespace cedar::kernels::cuda {

/// Describes 128 columns of rows that hold 64 of them each (128 bytes, swizzled as wgmma.h does): the second
/// 64 lie `tile_bytes` behind the first. Row 0 is 1024-byte aligned; for rows from 16 j on add value_step(j).
__device__ __forceinline__ uint64_t value_descriptor(uint32_t shared_address, uint32_t tile_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{tile_bytes >> 4} << 16 |
         ((shared_address & 0x3ffff) >> 4);
}
constexpr uint64_t value_step(int j) { return static_cast<uint64_t>(j) * (16 * 128 >> 4); }

/// d [64, 128] += a [64, 16] * b [16, 128], fragments as wgmma.h says.
__device__ __forceinline__ void wgmma_values(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#define CEDAR_SCORE_STEP(add)                                                                   \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                                       \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, a, b, " add \
  ", 1, 1, 0, 0;\n"
#define CEDAR_SCORE_NEXT "add.s64 a, a, 2;\n add.s64 b, b, 2;\n" CEDAR_SCORE_STEP("1")
#define CEDAR_SCORE_TILE CEDAR_SCORE_STEP("1") CEDAR_SCORE_NEXT CEDAR_SCORE_NEXT CEDAR_SCORE_NEXT
#define CEDAR_SCORE_NEXT_TILE "add.s64 a, a, %34;\n add.s64 b, b, %34;\n" CEDAR_SCORE_TILE

/// d [64, 64] = a [64, 256] * b [64, 256]^T from four tiles each (wgmma.h), `kTileBytes` apart. One
/// statement: what d held before need not be read, and a compiler that copied it would wait for other
/// products under way.
template <int kTileBytes>
__device__ __forceinline__ void wgmma_scores(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("{\n .reg .b64 a, b;\n mov.b64 a, %32;\n mov.b64 b, %33;\n"  //
               CEDAR_SCORE_STEP("0") CEDAR_SCORE_NEXT CEDAR_SCORE_NEXT CEDAR_SCORE_NEXT
                   CEDAR_SCORE_NEXT_TILE CEDAR_SCORE_NEXT_TILE CEDAR_SCORE_NEXT_TILE "}\n"
               : "=&f"(d[0]), "=&f"(d[1]), "=&f"(d[2]), "=&f"(d[3]), "=&f"(d[4]), "=&f"(d[5]),
                 "=&f"(d[6]), "=&f"(d[7]), "=&f"(d[8]), "=&f"(d[9]), "=&f"(d[10]), "=&f"(d[11]),
                 "=&f"(d[12]), "=&f"(d[13]), "=&f"(d[14]), "=&f"(d[15]), "=&f"(d[16]), "=&f"(d[17]),
                 "=&f"(d[18]), "=&f"(d[19]), "=&f"(d[20]), "=&f"(d[21]), "=&f"(d[22]), "=&f"(d[23]),
                 "=&f"(d[24]), "=&f"(d[25]), "=&f"(d[26]), "=&f"(d[27]), "=&f"(d[28]), "=&f"(d[29]),
                 "=&f"(d[30]), "=&f"(d[31])
               : "l"(a), "l"(b), "n"((kTileBytes >> 4) - 6));
}

#undef CEDAR_SCORE_NEXT_TILE
#undef CEDAR_SCORE_TILE
#undef CEDAR_SCORE_NEXT
#undef CEDAR_SCORE_STEP

}  // namespace cedar::kernels::cuda
