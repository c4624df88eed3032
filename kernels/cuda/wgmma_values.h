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

/// d [64, 64] = a [64, 256] * b [64, 256]^T. a: fragments of wgmma.h, step by step; b: four tiles of 64 channels,
/// `kTileBytes` apart. One statement: what d held before need not be read, and a compiler that copied it would wait for
/// other products under way.
#define CEDAR_SCORE_STEP(a0, a1, a2, a3, add)                                              \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                                  \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%" a0 \
  ", %" a1 ", %" a2 ", %" a3 "}, b, " add ", 1, 1, 0;\n"
#define CEDAR_SCORE_NEXT "add.s64 b, b, 2;\n"
#define CEDAR_SCORE_NEXT_TILE "add.s64 b, b, %97;\n"
template <int kTileBytes>
__device__ __forceinline__ void wgmma_scores(float (&d)[32], const uint32_t (&a)[16][4],
                                             uint64_t b) {
  asm volatile(
      "{\n .reg .b64 b;\n mov.b64 b, %96;\n" CEDAR_SCORE_STEP(
          "32", "33", "34", "35", "0") CEDAR_SCORE_NEXT CEDAR_SCORE_STEP("36", "37", "38", "39",
                                                                         "1")
          CEDAR_SCORE_NEXT CEDAR_SCORE_STEP(
              "40", "41", "42", "43", "1") CEDAR_SCORE_NEXT CEDAR_SCORE_STEP("44", "45", "46", "47",
                                                                             "1")
              CEDAR_SCORE_NEXT_TILE CEDAR_SCORE_STEP("48", "49", "50", "51", "1")
                  CEDAR_SCORE_NEXT CEDAR_SCORE_STEP("52", "53", "54", "55", "1")
                      CEDAR_SCORE_NEXT CEDAR_SCORE_STEP("56", "57", "58", "59", "1")
                          CEDAR_SCORE_NEXT CEDAR_SCORE_STEP("60", "61", "62", "63", "1")
                              CEDAR_SCORE_NEXT_TILE CEDAR_SCORE_STEP("64", "65", "66", "67", "1")
                                  CEDAR_SCORE_NEXT CEDAR_SCORE_STEP("68", "69", "70", "71", "1")
                                      CEDAR_SCORE_NEXT CEDAR_SCORE_STEP("72", "73", "74", "75", "1")
                                          CEDAR_SCORE_NEXT CEDAR_SCORE_STEP("76", "77", "78", "79",
                                                                            "1")
                                              CEDAR_SCORE_NEXT_TILE CEDAR_SCORE_STEP(
                                                  "80", "81", "82", "83", "1")
                                                  CEDAR_SCORE_NEXT CEDAR_SCORE_STEP("84", "85",
                                                                                    "86", "87", "1")
                                                      CEDAR_SCORE_NEXT CEDAR_SCORE_STEP(
                                                          "88", "89", "90", "91", "1")
                                                          CEDAR_SCORE_NEXT CEDAR_SCORE_STEP(
                                                              "92", "93", "94", "95", "1") "}\n"
      : "=&f"(d[0]), "=&f"(d[1]), "=&f"(d[2]), "=&f"(d[3]), "=&f"(d[4]), "=&f"(d[5]), "=&f"(d[6]),
        "=&f"(d[7]), "=&f"(d[8]), "=&f"(d[9]), "=&f"(d[10]), "=&f"(d[11]), "=&f"(d[12]),
        "=&f"(d[13]), "=&f"(d[14]), "=&f"(d[15]), "=&f"(d[16]), "=&f"(d[17]), "=&f"(d[18]),
        "=&f"(d[19]), "=&f"(d[20]), "=&f"(d[21]), "=&f"(d[22]), "=&f"(d[23]), "=&f"(d[24]),
        "=&f"(d[25]), "=&f"(d[26]), "=&f"(d[27]), "=&f"(d[28]), "=&f"(d[29]), "=&f"(d[30]),
        "=&f"(d[31])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]),
        "r"(a[1][2]), "r"(a[1][3]), "r"(a[2][0]), "r"(a[2][1]), "r"(a[2][2]), "r"(a[2][3]),
        "r"(a[3][0]), "r"(a[3][1]), "r"(a[3][2]), "r"(a[3][3]), "r"(a[4][0]), "r"(a[4][1]),
        "r"(a[4][2]), "r"(a[4][3]), "r"(a[5][0]), "r"(a[5][1]), "r"(a[5][2]), "r"(a[5][3]),
        "r"(a[6][0]), "r"(a[6][1]), "r"(a[6][2]), "r"(a[6][3]), "r"(a[7][0]), "r"(a[7][1]),
        "r"(a[7][2]), "r"(a[7][3]), "r"(a[8][0]), "r"(a[8][1]), "r"(a[8][2]), "r"(a[8][3]),
        "r"(a[9][0]), "r"(a[9][1]), "r"(a[9][2]), "r"(a[9][3]), "r"(a[10][0]), "r"(a[10][1]),
        "r"(a[10][2]), "r"(a[10][3]), "r"(a[11][0]), "r"(a[11][1]), "r"(a[11][2]), "r"(a[11][3]),
        "r"(a[12][0]), "r"(a[12][1]), "r"(a[12][2]), "r"(a[12][3]), "r"(a[13][0]), "r"(a[13][1]),
        "r"(a[13][2]), "r"(a[13][3]), "r"(a[14][0]), "r"(a[14][1]), "r"(a[14][2]), "r"(a[14][3]),
        "r"(a[15][0]), "r"(a[15][1]), "r"(a[15][2]), "r"(a[15][3]), "l"(b),
        "n"((kTileBytes >> 4) - 6));
}
#undef CEDAR_SCORE_NEXT_TILE
#undef CEDAR_SCORE_NEXT
#undef CEDAR_SCORE_STEP

}  // namespace cedar::kernels::cuda
