// e^x in fp32, one recipe for every caller: multiplications and additions only, so that scalar,
// SSE, AVX and AVX-512 code give the same bits on every processor (the C library's expf may differ
// between machines).
//   n = round(x * log2 e), r = x - n ln 2 in two pieces (the first product is exact), Cephes'
//   polynomial of degree 7 in r, times 2^n in two exact factors.
// Error below 1 ulp (tests/kernels/exp_test.cpp measures it), e^0 = 1. Results below 2^-126 become
// 0; x = -inf gives 0; x above 88.73 gives +inf. NaN is a caller bug.
// Files of every instruction set use this header: constants only, no function.

#pragma once

namespace cedar::kernels::cpu::exp_constants {

constexpr float kLowest = -87.336544f;  // ln 2^-126
constexpr float kHighest = 89.0f;
constexpr float kLog2e = 1.44269504f;
/// 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
constexpr float kRound = 12582912.0f;
constexpr float kLn2High = 0.693359375f;
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kC2 = 5.0000001201e-1f;
constexpr float kC3 = 1.6666665459e-1f;
constexpr float kC4 = 4.1665795894e-2f;
constexpr float kC5 = 8.3334519073e-3f;
constexpr float kC6 = 1.3981999507e-3f;
constexpr float kC7 = 1.9875691500e-4f;

}  // namespace cedar::kernels::cpu::exp_constants
