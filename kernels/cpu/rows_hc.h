// Included by row_kernels_<isa>.cpp: hyper-connection products and mixes (spec/model.md 6).

namespace cedar::kernels::cpu::CEDAR_ISA {

// fn is read in pieces that stay in the second-level cache while every row of the tile passes over
// them.
constexpr int64_t kHcPiece = 1024;

/// 16-lane sums of kRows x kOutputs products over columns [begin, end).
template <int kRows, int kOutputs>
CEDAR_INLINE void hc_piece(const HcDots& p, int64_t row, int64_t output, int64_t begin,
                           int64_t end) {
  F32x16 sum[kRows][kOutputs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) {
      sum[r][o] = load(p.scratch + ((row + r) * p.outputs + output + o) * kLanes);
    }
  }
  for (int64_t c = begin; c < end; c += kLanes) {
    F32x16 z[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) z[r] = load_bf16(p.z + (row + r) * p.n + c, p.n - c);
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) {
      const F32x16 f = load(p.fn + (output + o) * p.n + c, p.n - c);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sum[r][o] = sum[r][o] + f * z[r];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) {
      store(p.scratch + ((row + r) * p.outputs + output + o) * kLanes, sum[r][o]);
    }
  }
}

template <int kRows>
CEDAR_INLINE void hc_outputs(const HcDots& p, int64_t row, int64_t begin, int64_t end) {
  int64_t o = 0;
  constexpr int kWide = CEDAR_SIMD_BYTES == 64 ? 4 : 2;
  for (; o + kWide <= p.outputs; o += kWide) hc_piece<kRows, kWide>(p, row, o, begin, end);
  for (; o < p.outputs; ++o) hc_piece<kRows, 1>(p, row, o, begin, end);
}

static void hc_dots(const HcDots& p) {
  for (int64_t i = 0; i < p.rows * p.outputs; ++i) store(p.scratch + i * kLanes, zero());
  constexpr int kRows = CEDAR_SIMD_BYTES == 64 ? 4 : CEDAR_SIMD_BYTES == 32 ? 2 : 1;
  for (int64_t begin = 0; begin < p.n; begin += kHcPiece) {
    const int64_t end = p.n - begin < kHcPiece ? p.n : begin + kHcPiece;
    int64_t r = 0;
    for (; r + kRows <= p.rows; r += kRows) hc_outputs<kRows>(p, r, begin, end);
    for (; r < p.rows; ++r) hc_outputs<1>(p, r, begin, end);
  }
  for (int64_t r = 0; r < p.rows; ++r) {
    for (int64_t o = 0; o < p.outputs; ++o) {
      p.dots[r * p.dots_stride + o] = reduce_add(load(p.scratch + (r * p.outputs + o) * kLanes));
    }
  }
}

// kCopies: the model's four as a constant, which keeps them in registers; 0 for any other number.
template <int kCopies>
CEDAR_INLINE void collapse(const uint16_t* x, const float* weights, uint16_t* u, int64_t any_copies,
                           int64_t d) {
  const int64_t copies = kCopies > 0 ? kCopies : any_copies;
  for (int64_t c = 0; c < d; c += kLanes) {
    F32x16 sum = load_bf16(x + c, d - c) * set1(weights[0]);
#pragma GCC unroll 4
    for (int64_t j = 1; j < copies; ++j)
      sum = sum + load_bf16(x + j * d + c, d - c) * set1(weights[j]);
    store_bf16(u + c, sum, d - c);
  }
}

static void hc_collapse(const uint16_t* x, const float* weights, uint16_t* u, int64_t copies,
                        int64_t d) {
  if (copies == 4) {
    collapse<4>(x, weights, u, copies, d);
  } else {
    collapse<0>(x, weights, u, copies, d);
  }
}

static void hc_mean(const uint16_t* x, uint16_t* y, int64_t copies, int64_t d) {
  for (int64_t c = 0; c < d; c += kLanes) {
    F32x16 sum = load_bf16(x + c, d - c);
    for (int64_t j = 1; j < copies; ++j) sum = sum + load_bf16(x + j * d + c, d - c);
    store_bf16(y + c, sum / set1(static_cast<float>(copies)), d - c);
  }
}

template <int kCopies>
CEDAR_INLINE void post_and_mix(const uint16_t* x, const uint16_t* y, const float* post,
                               const float* mix, uint16_t* out, int64_t any_copies, int64_t d) {
  const int64_t copies = kCopies > 0 ? kCopies : any_copies;
  for (int64_t c = 0; c < d; c += kLanes) {
    const int64_t left = d - c;
    const F32x16 value = load_bf16(y + c, left);
    // All copies are read before any is written: out may be x.
    F32x16 in[kCopies > 0 ? kCopies : kHcMaxCopies];
#pragma GCC unroll 4
    for (int64_t j = 0; j < copies; ++j) in[j] = load_bf16(x + j * d + c, left);
#pragma GCC unroll 4
    for (int64_t k = 0; k < copies; ++k) {
      F32x16 sum = in[0] * set1(mix[k]);
#pragma GCC unroll 4
      for (int64_t j = 1; j < copies; ++j) sum = sum + in[j] * set1(mix[j * copies + k]);
      store_bf16(out + k * d + c, value * set1(post[k]) + sum, left);
    }
  }
}

static void hc_post(const uint16_t* x, const uint16_t* y, const float* post, const float* mix,
                    uint16_t* out, int64_t copies, int64_t d) {
  if (copies == 4) {
    post_and_mix<4>(x, y, post, mix, out, copies, d);
  } else {
    post_and_mix<0>(x, y, post, mix, out, copies, d);
  }
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
