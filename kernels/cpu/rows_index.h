// Included by row_kernels_<isa>.cpp: indexer scores of a tile of keys.
//
// E2M1 values are halves of small integers, so a group's 32 products sum exactly in integers: keys are
// expanded to 2v + 12 (unsigned bytes, which is what the byte dot product wants on one side), queries to 2v,
// and the constant 12 is taken out again by the query's bias. Group sums then meet their two power-of-two
// scales in fp32, groups ascending. Lane = key; a query's words are broadcast.

namespace cedar::kernels::cpu::CEDAR_ISA {

constexpr int kGroupWords = 8;  // a group of 32 codes: 8 words of 4 bytes
constexpr int kIndexHeads = CEDAR_SIMD_BYTES == 64 ? 4 : 2;
constexpr int kIndexVectors = CEDAR_SIMD_BYTES == 64 ? 2 : 1;

struct KeyTile {
  uint32_t* words;  // [columns / 4, 64]
  float* scales;    // [columns / 32, 64]
};

CEDAR_INLINE void expand_keys(const IndexTile& p, const KeyTile& tile) {
  // 2v + 12 of the sixteen codes.
  constexpr uint8_t kBiased[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  const int64_t packed_words = p.columns / 8;
  const int64_t groups = p.columns / 32;
  uint32_t* packed = tile.words + p.columns / 4 * kIndexTile;  // [16, packed_words]
  for (int64_t base = 0; base < kIndexTile; base += kLanes) {
    if (base >= p.keys) break;
    for (int64_t r = 0; r < kLanes; ++r) {
      // Missing keys repeat the last one; their lanes are never stored.
      const int64_t key = base + r < p.keys ? base + r : p.keys - 1;
      const uint8_t* row = p.key_rows[key];
      std::memcpy(packed + r * packed_words, row, static_cast<size_t>(packed_words) * 4);
      for (int64_t g = 0; g < groups; ++g) {
        tile.scales[g * kIndexTile + base + r] = e8m0_to_float(row[p.columns / 2 + g]);
      }
    }
    uint32_t* columns = packed + kLanes * packed_words;  // [packed_words, 16]
    if (packed_words % kLanes == 0) {
      for (int64_t w = 0; w < packed_words; w += kLanes) {
        transpose_16x16(packed + w, packed_words, columns + w * kLanes, kLanes);
      }
    } else {
      for (int64_t r = 0; r < kLanes; ++r) {
        for (int64_t w = 0; w < packed_words; ++w) columns[w * kLanes + r] = packed[r * packed_words + w];
      }
    }
    for (int64_t w = 0; w < packed_words; ++w) {
      const U32x16 both = load_u32(columns + w * kLanes);
      const U32x16 nibble = set1_u32(0x0f0f0f0fu);
      uint32_t* out = tile.words + 2 * w * kIndexTile + base;
      store_u32(out, lookup_nibbles(kBiased, both & nibble));
      store_u32(out + kIndexTile, lookup_nibbles(kBiased, shift_right<4>(both) & nibble));
    }
  }
}

/// q . k of kHeads heads and kVectors vectors of keys.
template <int kHeads, int kVectors>
CEDAR_INLINE void index_dots(const IndexTile& p, const KeyTile& tile, const IndexQueryRow& row, int64_t head,
                             int64_t key, F32x16 (*dot)[kVectors]) {
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) dot[h][v] = zero();
  }
  const int64_t groups = p.columns / 32;
  for (int64_t g = 0; g < groups; ++g) {
    const uint32_t* words = tile.words + g * kGroupWords * kIndexTile + key;
    U32x16 sum[kHeads][kVectors];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const U32x16 bias = set1_u32(static_cast<uint32_t>(row.bias[(head + h) * groups + g]));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[h][v] = bias;
    }
    const int8_t* codes = row.codes + head * p.columns + g * 32;
#if CEDAR_SIMD_BYTES == 64
#pragma GCC unroll 8
    for (int s = 0; s < kGroupWords; ++s) {
      U32x16 k[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) k[v] = load_u32(words + s * kIndexTile + v * kLanes);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) {
        uint32_t word;
        std::memcpy(&word, codes + h * p.columns + s * 4, sizeof word);
        const U32x16 pair = set1_u32(word);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[h][v] = dot_bytes<1>(sum[h][v], &k[v], &pair);
      }
    }
#else
    // Sixteen-bit partial sums hold a whole group: 8 words x 2 products x 24 x 12 < 2^15.
    U32x16 k[kVectors][kGroupWords];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
      for (int s = 0; s < kGroupWords; ++s) k[v][s] = load_u32(words + s * kIndexTile + v * kLanes);
    }
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      U32x16 q[kGroupWords];
#pragma GCC unroll 8
      for (int s = 0; s < kGroupWords; ++s) {
        uint32_t word;
        std::memcpy(&word, codes + h * p.columns + s * 4, sizeof word);
        q[s] = set1_u32(word);
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[h][v] = dot_bytes<kGroupWords>(sum[h][v], k[v], q);
    }
#endif
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const F32x16 q_scale = set1(row.scale[(head + h) * groups + g]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const F32x16 k_scale = load(tile.scales + g * kIndexTile + key + v * kLanes);
        const F32x16 scaled = signed_to_float(sum[h][v]) * k_scale;
        dot[h][v] = add_exact_product(dot[h][v], scaled, q_scale);
      }
    }
  }
}

/// Adds the kHeads heads' weighted, rectified products to the running sums, heads ascending.
template <int kHeads, int kVectors>
CEDAR_INLINE void index_heads(const IndexTile& p, const KeyTile& tile, const IndexQueryRow& row, int64_t head,
                              int64_t key, F32x16* score) {
  F32x16 dot[kHeads][kVectors];
  index_dots<kHeads, kVectors>(p, tile, row, head, key, dot);
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    const F32x16 weight = set1(row.weights[head + h]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (p.round_bf16) {
        score[v] = score[v] + round_bf16(max(round_bf16(dot[h][v]), zero()) * weight);
      } else {
        score[v] = score[v] + max(dot[h][v], zero()) * weight;
      }
    }
  }
}

template <int kVectors>
CEDAR_INLINE void index_vectors(const IndexTile& p, const KeyTile& tile, const IndexQueryRow& row,
                                int64_t key) {
  F32x16 score[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) score[v] = zero();
  int64_t h = 0;
  for (; h + kIndexHeads <= p.heads; h += kIndexHeads) {
    index_heads<kIndexHeads, kVectors>(p, tile, row, h, key, score);
  }
  for (; h < p.heads; ++h) index_heads<1, kVectors>(p, tile, row, h, key, score);
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = key + v * kLanes;
    const int64_t left = p.keys - at;
    if (left <= 0) break;
    if (p.round_bf16) score[v] = round_bf16(score[v]);
    const int64_t shown = row.visible - (p.first + at);
    const U32x16 visible = set1_u32(static_cast<uint32_t>(shown < 0 ? 0 : shown > kLanes ? kLanes : shown));
    const U32x16 masked =
        select_less(lane_index(), visible, bits(score[v]), bits(set1(-__builtin_inff())));
    store_u32(reinterpret_cast<uint32_t*>(row.scores + p.first + at), masked, left);
  }
}

static void index_tile(const IndexTile& p) {
  KeyTile tile;
  tile.words = reinterpret_cast<uint32_t*>(p.scratch);
  tile.scales = reinterpret_cast<float*>(tile.words + p.columns / 4 * kIndexTile + 2 * kLanes * (p.columns / 8));
  expand_keys(p, tile);
  for (int64_t r = 0; r < p.row_count; ++r) {
    const IndexQueryRow& row = p.rows[r];
    for (int64_t key = 0; key < p.keys; key += kIndexVectors * kLanes) {
      index_vectors<kIndexVectors>(p, tile, row, key);
    }
  }
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
