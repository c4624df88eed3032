// Included by row_kernels_<isa>.cpp: indexer scores of a tile of keys.
//
// E2M1 values are halves of small integers, so a group's 32 products sum exactly in integers: keys
// are expanded to 2v + 12 (unsigned bytes, which is what the byte dot product wants on one side),
// queries to 2v, and the constant 12 is taken out again by the query's bias. Group sums then meet
// their two power-of-two scales in fp32, groups ascending. Lane = key; a query's words are
// broadcast.

namespace cedar::kernels::cpu::CEDAR_ISA {

constexpr int kGroupWords = 8;  // a group of 32 codes: 8 words of 4 bytes
constexpr int kIndexHeads = 4;
constexpr int kIndexVectors = CEDAR_SIMD_BYTES == 64 ? 3 : 1;

struct KeyTile {
  uint32_t* words;   // [columns / 4, kIndexTile]
  float* scales;     // [columns / 32, kIndexTile]
  uint32_t* packed;  // [columns / 8, 16]: packed words of the 16 keys being expanded
};

/// Scales of 16 keys, four groups at a time.
CEDAR_INLINE void expand_scales(const uint8_t* const* rows, int64_t columns, float* scales) {
  const int64_t groups = columns / 32;
  for (int64_t g = 0; g < groups; g += 4) {
    const int64_t left = groups - g < 4 ? groups - g : 4;
    uint32_t codes[kLanes] = {};
    for (int r = 0; r < kLanes; ++r) {
      const uint8_t* from = rows[r] + columns / 2 + g;
      if (left == 4) {
        std::memcpy(&codes[r], from, 4);
      } else {
        std::memcpy(&codes[r], from, static_cast<size_t>(left));
      }
    }
    U32x16 packed = load_u32(codes);
    for (int64_t i = 0; i < left; ++i, packed = shift_right<8>(packed)) {
      store(scales + (g + i) * kIndexTile, e8m0_to_float(packed & set1_u32(255)));
    }
  }
}

CEDAR_INLINE void expand_keys(const IndexTile& p, const KeyTile& tile) {
  // 2v + 12 of the sixteen codes.
  constexpr uint8_t kBiased[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  const int64_t packed_words = p.columns / 8;
  for (int64_t base = 0; base < p.keys; base += kLanes) {
    // Missing keys repeat the last one; their lanes are never stored.
    const uint8_t* rows[kLanes];
    for (int r = 0; r < kLanes; ++r)
      rows[r] = p.key_rows[base + r < p.keys ? base + r : p.keys - 1];
    expand_scales(rows, p.columns, tile.scales + base);

    uint32_t* columns = tile.packed;
    int64_t w = 0;
    for (; w + kLanes <= packed_words; w += kLanes) {
      transpose_16x16([&](int r) { return rows[r] + w * 4; }, columns + w * kLanes, kLanes);
    }
    for (; w < packed_words; ++w) {
      for (int r = 0; r < kLanes; ++r) std::memcpy(&columns[w * kLanes + r], rows[r] + w * 4, 4);
    }
    for (w = 0; w < packed_words; ++w) {
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
CEDAR_INLINE void index_dots(const IndexTile& p, const KeyTile& tile, const IndexQueryRow& row,
                             int64_t head, int64_t key, F32x16 (*dot)[kVectors]) {
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) dot[h][v] = zero();
  }
  const int64_t groups = p.columns / 32;
  for (int64_t g = 0; g < groups; ++g) {
    // Sixteen-bit partial sums hold a whole group: 8 words x 2 products x 24 x 12 < 2^15.
    U32x16 sum[kHeads][kVectors];
    dot_bytes<kHeads, kVectors, kGroupWords>(
        sum, row.bias + head * groups + g, groups, tile.words + g * kGroupWords * kIndexTile + key,
        kIndexTile, row.codes + head * p.columns + g * 32, p.columns);
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
CEDAR_INLINE void index_heads(const IndexTile& p, const KeyTile& tile, const IndexQueryRow& row,
                              int64_t head, int64_t key, F32x16* score) {
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
    const U32x16 visible = set1_u32(static_cast<uint32_t>(shown < 0        ? 0
                                                          : shown > kLanes ? kLanes
                                                                           : shown));
    const U32x16 masked =
        select_less(lane_index(), visible, bits(score[v]), bits(set1(-__builtin_inff())));
    store(row.scores + p.first + at, from_bits(masked), left);
  }
}

static void index_tile(const IndexTile& p) {
  KeyTile tile;
  tile.words = reinterpret_cast<uint32_t*>(p.scratch);
  tile.packed = tile.words + p.columns / 4 * kIndexTile;
  tile.scales = reinterpret_cast<float*>(tile.packed + p.columns / 8 * kLanes);
  expand_keys(p, tile);
  for (int64_t r = 0; r < p.row_count; ++r) {
    const IndexQueryRow& row = p.rows[r];
    for (int64_t key = 0; key < p.keys; key += kIndexVectors * kLanes) {
      index_vectors<kIndexVectors>(p, tile, row, key);
    }
  }
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
