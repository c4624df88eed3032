// Included by row_kernels_<isa>.cpp: attention over one block of 64 rows at a time.
//
// A block's rows become pair words once, in two layouts that suit the two products:
//   scores: key_words[pair of channels][key]   lane = key; a query's pair word is broadcast
//   values: value_words[pair of keys][channel] lane = channel; a probability pair is broadcast
// Both then are accumulate_pairs() chains in a fixed order (channels, keys ascending), so that no
// result depends on how queries are grouped. Within each 32 channels the values hold the 16 even
// channels, then the 16 odd ones; the accumulators keep that order and the last step interleaves
// them again as pair words.

namespace cedar::kernels::cpu::CEDAR_ISA {

constexpr int kKeyVectors = kAttentionBlock / kLanes;
// Register tiles, in vectors of 16 lanes: queries x keys (or channels). 32 wide registers hold 4 x
// 4 accumulators of one register each; 16 registers hold 2 x 2 of two (AVX2) or 2 x 1 of four
// (SSE).
constexpr int kTileQueries = CEDAR_SIMD_BYTES == 64 ? 4 : 2;
constexpr int kTileColumns = CEDAR_SIMD_BYTES == 64 ? 4 : CEDAR_SIMD_BYTES == 32 ? 2 : 1;
static_assert(kTileQueries <= kAttentionTile);

struct AttentionState {
  uint32_t* key_words;    // [head_dim / 2, 64]
  uint32_t* value_words;  // [32, head_dim]
  uint32_t* row_words;    // [16, head_dim / 2]
  PairOperand* operands;  // [kTileQueries, head_dim / 2]: the tile's queries
  float* sums;            // [queries, head_dim]
  float* maximum;         // [queries]
  float* total;           // [queries]
  int64_t head_dim;
};

CEDAR_INLINE AttentionState carve(uint8_t* scratch, int64_t queries, int64_t head_dim) {
  AttentionState s;
  s.head_dim = head_dim;
  uint32_t* words = reinterpret_cast<uint32_t*>(scratch);
  s.key_words = words;
  words += head_dim / 2 * kAttentionBlock;
  s.value_words = words;
  words += kAttentionBlock / 2 * head_dim;
  s.row_words = words;
  words += kLanes * (head_dim / 2);
  s.operands = reinterpret_cast<PairOperand*>(words);
  words += kAttentionTile * head_dim;
  s.sums = reinterpret_cast<float*>(words);
  s.maximum = s.sums + queries * head_dim;
  s.total = s.maximum + queries;
  for (int64_t i = 0; i < queries; ++i) {
    s.maximum[i] = -1e30f;
    s.total[i] = 0;
  }
  for (int64_t i = 0; i < queries * head_dim; i += kLanes) store(s.sums + i, zero());
  return s;
}

/// Adds 16 rows of pair words as keys [16 * chunk, 16 * chunk + 16) of the score layout.
CEDAR_INLINE void pack_keys(const AttentionState& s, int64_t chunk) {
  const int64_t pairs = s.head_dim / 2;
  for (int64_t w = 0; w < pairs; w += kLanes) {
    const uint8_t* rows = reinterpret_cast<const uint8_t*>(s.row_words + w);
    transpose_16x16([=](int r) { return rows + r * pairs * 4; },
                    s.key_words + w * kAttentionBlock + chunk * kLanes, kAttentionBlock);
  }
}

CEDAR_INLINE void pack_values(const AttentionState& s, int64_t chunk) {
  const int64_t pairs = s.head_dim / 2;
  for (int64_t r = 0; r < kLanes; r += 2) {
    const uint32_t* even = s.row_words + r * pairs;
    const uint32_t* odd = even + pairs;
    uint32_t* out = s.value_words + (chunk * kLanes + r) / 2 * s.head_dim;
    for (int64_t w = 0; w < pairs; w += kLanes) {
      const U32x16 a = load_u32(even + w), b = load_u32(odd + w);
      store_u32(out + 2 * w, (a & set1_u32(0xffffu)) | shift_left<16>(b));
      store_u32(out + 2 * w + kLanes, shift_right<16>(a) | (b & set1_u32(0xffff0000u)));
    }
  }
}

/// scores[q][key] = q . k of kQueries queries and kVectors vectors of keys.
template <int kQueries, int kVectors>
CEDAR_INLINE void score_tile(const AttentionState& s, const PairOperand* q, int64_t key,
                             float (*scores)[kAttentionBlock]) {
  F32x16 sum[kQueries][kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[i][v] = zero();
  }
  const int64_t pairs = s.head_dim / 2;
  const uint32_t* keys = s.key_words + key;
  for (int64_t w = 0; w < pairs; ++w, keys += kAttentionBlock)
    accumulate_pairs(sum, keys, q + w, pairs);
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(scores[i] + key + v * kLanes, sum[i][v]);
  }
}

/// sums = sums * alpha + p . v of kQueries queries and kVectors vectors of channels.
template <int kQueries, int kVectors>
CEDAR_INLINE void value_tile(const AttentionState& s, int64_t query, int64_t channel,
                             int64_t key_pairs, const PairOperand (*p)[kAttentionBlock / 2],
                             const float* alpha) {
  F32x16 sum[kQueries][kVectors];
  float* sums = s.sums + query * s.head_dim + channel;
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[i][v] = load(sums + i * s.head_dim + v * kLanes) * set1(alpha[i]);
    }
  }
  const uint32_t* values = s.value_words + channel;
  for (int64_t j = 0; j < key_pairs; ++j, values += s.head_dim) {
    accumulate_pairs(sum, values, p[0] + j, kAttentionBlock / 2);
  }
#pragma GCC unroll 4
  for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(sums + i * s.head_dim + v * kLanes, sum[i][v]);
  }
}

CEDAR_INLINE void make_operands(const uint16_t* x, int64_t pairs, PairOperand* out) {
  for (int64_t i = 0; i < pairs; ++i) {
    uint32_t word;
    std::memcpy(&word, x + 2 * i, sizeof word);
    out[i] = pair_operand(word);
  }
}

/// One query's step of the online softmax over the block's scores; writes bf16 probabilities.
CEDAR_INLINE void softmax_step(const AttentionState& s, int64_t query, float* scores, int64_t count,
                               float scale, PairOperand* p, float* alpha) {
  const F32x16 lowest = set1(-__builtin_inff());
  F32x16 x[kKeyVectors];
  F32x16 largest = lowest;
#pragma GCC unroll 4
  for (int v = 0; v < kKeyVectors; ++v) {
    const F32x16 scaled = load(scores + v * kLanes) * set1(scale);
    // Lanes past `count` hold nothing: they may not even be read as numbers.
    x[v] =
        from_bits(select_less(lane_index() + set1_u32(static_cast<uint32_t>(v * kLanes)),
                              set1_u32(static_cast<uint32_t>(count)), bits(scaled), bits(lowest)));
    largest = max(largest, x[v]);
  }
  const float before = s.maximum[query];
  const float block = reduce_max(largest);
  const float after = block > before ? block : before;
  uint16_t rounded[kAttentionBlock];
#pragma GCC unroll 4
  for (int v = 0; v < kKeyVectors; ++v) {
    x[v] = exp_of_nonpositive(x[v] - set1(after));
    // Positive and far from overflow; a NaN reaches the result through `total`.
    const U32x16 u = bits(x[v]);
    store_u16(rounded + v * kLanes,
              shift_right<16>(u + set1_u32(0x7fffu) + (shift_right<16>(u) & set1_u32(1))));
  }
  make_operands(rounded, kAttentionBlock / 2, p);
  *alpha = exp(before - after);
  s.total[query] = s.total[query] * *alpha + reduce_add((x[0] + x[1]) + (x[2] + x[3]));
  s.maximum[query] = after;
}

template <int kQueries>
CEDAR_INLINE void attend_tile(const AttentionState& s, const uint16_t* q, int64_t q_stride,
                              int64_t query, int64_t count, float scale) {
  alignas(64) float scores[kQueries][kAttentionBlock];
  alignas(64) PairOperand p[kQueries][kAttentionBlock / 2];
  float alpha[kQueries];
  const int64_t pairs = s.head_dim / 2;
  for (int i = 0; i < kQueries; ++i) make_operands(q + i * q_stride, pairs, s.operands + i * pairs);
  const int64_t vectors = (count + kLanes - 1) / kLanes;
  int64_t v = 0;
  for (; v + kTileColumns <= vectors; v += kTileColumns) {
    score_tile<kQueries, kTileColumns>(s, s.operands, v * kLanes, scores);
  }
  for (; v < vectors; ++v) score_tile<kQueries, 1>(s, s.operands, v * kLanes, scores);
  for (int64_t i = vectors * kLanes; i < kAttentionBlock; ++i) {
    for (int j = 0; j < kQueries; ++j) scores[j][i] = 0;
  }
  for (int i = 0; i < kQueries; ++i) {
    softmax_step(s, query + i, scores[i], count, scale, p[i], alpha + i);
  }
  const int64_t key_pairs = (count + 1) / 2;
  int64_t c = 0;
  for (; c + kTileColumns * kLanes <= s.head_dim; c += kTileColumns * kLanes) {
    value_tile<kQueries, kTileColumns>(s, query, c, key_pairs, p, alpha);
  }
  for (; c < s.head_dim; c += kLanes) value_tile<kQueries, 1>(s, query, c, key_pairs, p, alpha);
}

/// All queries against the packed block of `count` rows.
CEDAR_INLINE void attend_block(const AttentionState& s, const uint16_t* q, int64_t q_stride,
                               int64_t queries, int64_t count, float scale) {
  int64_t i = 0;
  for (; i + kTileQueries <= queries; i += kTileQueries) {
    attend_tile<kTileQueries>(s, q + i * q_stride, q_stride, i, count, scale);
  }
  for (; i < queries; ++i) attend_tile<1>(s, q + i * q_stride, q_stride, i, count, scale);
}

/// o = bf16(sums / denominator), then rotated back where cos is set.
CEDAR_INLINE void finish_query(const AttentionState& s, int64_t query, float denominator,
                               const float* cos, const float* sin, int64_t rotary_dim,
                               uint16_t* o) {
  const float* sums = s.sums + query * s.head_dim;
  const F32x16 d = set1(denominator);
  for (int64_t c = 0; c < s.head_dim; c += 2 * kLanes) {
    store_pairs(o + c, make_pairs(load(sums + c) / d, load(sums + c + kLanes) / d));
  }
  if (cos == nullptr) return;
  // `sin` is already negated by the caller.
  rotate_pairs(o + s.head_dim - rotary_dim, rotary_dim / 2, cos, sin);
}

/// Asks for the rows of one block: chosen rows lie anywhere in memory, and no hardware guesses the
/// next one.
CEDAR_INLINE void prefetch_rows(const AttendQuery& p, int64_t begin) {
  const int64_t total = p.q8_rows + p.q4n_rows;
  const int64_t end = total - begin < kAttentionBlock ? total : begin + kAttentionBlock;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t bytes = i < p.q8_rows ? p.head_dim / 32 * 33 : p.head_dim / 16 * 9;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(p.rows[i] + at, 0, 2);
  }
}

static void attend_query(const AttendQuery& p) {
  const int64_t total = p.q8_rows + p.q4n_rows;
  if (total == 0) {
    std::memset(p.o, 0, static_cast<size_t>(p.heads * p.head_dim) * 2);
    return;
  }
  const AttentionState s = carve(p.scratch, p.heads, p.head_dim);
  const int64_t pairs = p.head_dim / 2;
  prefetch_rows(p, 0);
  for (int64_t begin = 0; begin < total; begin += kAttentionBlock) {
    const int64_t count = total - begin < kAttentionBlock ? total - begin : kAttentionBlock;
    prefetch_rows(p, begin + kAttentionBlock);
    for (int64_t chunk = 0; chunk * kLanes < count; ++chunk) {
      for (int64_t r = 0; r < kLanes; ++r) {
        const int64_t entry = begin + chunk * kLanes + r;
        uint32_t* words = s.row_words + r * pairs;
        if (entry >= total) {
          std::memset(words, 0, static_cast<size_t>(pairs) * 4);
        } else if (entry < p.q8_rows) {
          widen_q8_words(p.rows[entry], p.head_dim, words);
        } else {
          widen_q4n_words(p.rows[entry], p.head_dim, words);
        }
      }
      pack_keys(s, chunk);
      pack_values(s, chunk);
    }
    attend_block(s, p.q, p.head_dim, p.heads, count, p.scale);
  }
  for (int64_t h = 0; h < p.heads; ++h) {
    const float denominator = s.total[h] + exp(p.sink[h] - s.maximum[h]);
    finish_query(s, h, denominator, p.cos, p.sin, p.rotary_dim, p.o + h * p.head_dim);
  }
}

static void attend_dense(const AttendDense& p) {
  const AttentionState s = carve(p.scratch, p.queries, p.head_dim);
  const size_t row_bytes = static_cast<size_t>(p.head_dim) * 2;
  const int64_t pairs = p.head_dim / 2;
  for (int64_t begin = 0; begin < p.keys; begin += kAttentionBlock) {
    const int64_t count = p.keys - begin < kAttentionBlock ? p.keys - begin : kAttentionBlock;
    for (int64_t chunk = 0; chunk * kLanes < count; ++chunk) {
      for (int pass = 0; pass < 2; ++pass) {
        const uint16_t* source = pass == 0 ? p.k : p.v;
        for (int64_t r = 0; r < kLanes; ++r) {
          const int64_t row = begin + chunk * kLanes + r;
          uint32_t* words = s.row_words + r * pairs;
          if (row < p.keys) {
            std::memcpy(words, source + row * p.stride, row_bytes);
          } else {
            std::memset(words, 0, row_bytes);
          }
        }
        if (pass == 0) {
          pack_keys(s, chunk);
        } else {
          pack_values(s, chunk);
        }
      }
    }
    attend_block(s, p.q, p.stride, p.queries, count, p.scale);
  }
  for (int64_t i = 0; i < p.queries; ++i) {
    const float denominator =
        p.sink == nullptr ? s.total[i] : s.total[i] + exp(p.sink[i] - s.maximum[i]);
    finish_query(s, i, denominator, nullptr, nullptr, 0, p.o + i * p.o_stride);
  }
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
