// The inner loops of the row-wise operations, compiled once per instruction set. Plain structs and
// pointers: this header is included by files with wide instruction flags and must not define any
// function. bf16 is uint16_t here; a pair word is two neighbouring bf16, the even element in the
// lower half. No function allocates, none keeps state; every one computes the same bits at every
// level.

#pragma once

#include <cstdint>

namespace cedar::kernels::cpu {

/// Entries of one online-softmax block (spec/model.md 7.8).
constexpr int64_t kAttentionBlock = 64;
/// Queries (or heads) of one register tile, at most.
constexpr int64_t kAttentionTile = 4;
/// Keys scored together; their expanded codes (12 KiB at 128 columns) stay in the first-level
/// cache.
constexpr int64_t kIndexTile = 96;
/// Rows of hyper-connection products computed together, limited by their accumulators (1.5 KiB a
/// row).
constexpr int64_t kHcRowTile = 16;
/// kMaxHcCopies of kernels/hyper_connection.h, which checks that they agree.
constexpr int64_t kHcMaxCopies = 8;

/// Attention of some heads of one query over a list of packed rows.
struct AttendQuery {
  const uint16_t* q = nullptr;           // [heads, head_dim]
  const float* sink = nullptr;           // [heads]
  const uint8_t* const* rows = nullptr;  // [q8_rows + q4n_rows] packed rows, in list order
  int64_t q8_rows = 0;
  int64_t q4n_rows = 0;
  /// [rotary_dim / 2] of the query's position, sin negated; null: o is not rotated back.
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t rotary_dim = 0;
  float scale = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;        // multiple of 32
  uint16_t* o = nullptr;       // [heads, head_dim]
  uint8_t* scratch = nullptr;  // attention_scratch_bytes(heads, head_dim), 64-byte aligned
};

/// The same with dense bf16 keys and values: many queries of one head (vision), or many heads of
/// one query.
struct AttendDense {
  const uint16_t* q = nullptr;  // [queries, stride]
  const uint16_t* k = nullptr;  // [keys, stride]
  const uint16_t* v = nullptr;  // [keys, stride]
  int64_t stride = 0;           // in elements
  const float* sink = nullptr;  // [queries] or null
  int64_t queries = 0;
  int64_t keys = 0;
  float scale = 0;
  int64_t head_dim = 0;   // multiple of 32
  uint16_t* o = nullptr;  // [queries, o_stride]
  int64_t o_stride = 0;
  uint8_t* scratch = nullptr;  // attention_scratch_bytes(queries, head_dim)
};

/// Indexer queries of one row, expanded from packed Q4X. Within a group of 32: words of the even
/// elements and of the odd ones alternate, as they leave the packed bytes.
struct IndexQueryRow {
  const int8_t* codes = nullptr;   // [heads, columns], twice the E2M1 values
  const int32_t* bias = nullptr;   // [heads, columns / 32]: -12 times the sum of the group's codes
  const float* scale = nullptr;    // [heads, columns / 32]: a quarter of the group's scale
  const float* weights = nullptr;  // [heads]
  int64_t visible = 0;
  float* scores = nullptr;  // of key 0
};

/// Scores of up to kIndexTile keys [first, first + keys) for every given row; -inf from `visible`
/// on.
struct IndexTile {
  const uint8_t* const* key_rows = nullptr;  // [keys] packed Q4X
  int64_t first = 0;
  int64_t keys = 0;
  const IndexQueryRow* rows = nullptr;
  int64_t row_count = 0;
  int64_t heads = 0;
  int64_t columns = 0;  // multiple of 32
  bool round_bf16 = false;
  uint8_t* scratch = nullptr;  // index_scratch_bytes(columns)
};

/// Columns of one row whose score exceeds a threshold.
struct SelectScan {
  const float* scores = nullptr;
  const uint32_t* mask = nullptr;  // bit c of word c / 32 allows column c; null: all
  int64_t begin = 0;               // multiple of 32
  int64_t end = 0;
  float threshold = 0;
  float* found_scores = nullptr;  // appended from `count` on, columns ascending
  int32_t* found_columns = nullptr;
  int64_t count = 0;
  int64_t capacity = 0;  // the scan stops once fewer than 32 places are free
};

/// Products of several rows z with several rows of fn, both [.., n].
struct HcDots {
  const float* fn = nullptr;    // [outputs, n]
  const uint16_t* z = nullptr;  // [rows, n]
  float* dots = nullptr;        // [rows, dots_stride]
  int64_t dots_stride = 0;
  int64_t rows = 0;  // <= kHcRowTile
  int64_t outputs = 0;
  int64_t n = 0;
  float* scratch = nullptr;  // [rows, outputs, 16]
};

struct RowKernels {
  /// y = bf16(w * (x * rsqrt(mean(x^2) + eps))); x may equal y.
  void (*rms_norm)(const uint16_t* x, const uint16_t* w, uint16_t* y, int64_t n, float eps);
  /// Sum of squares of n bf16.
  float (*square_sum)(const uint16_t* x, int64_t n);
  /// (a, b) -> bf16(a cos - b sin, a sin + b cos) on `pairs` adjacent pairs, in place.
  void (*rotate_pairs)(uint16_t* x, int64_t pairs, const float* cos, const float* sin);
  /// The same on pairs (x[i], x[i + half]).
  void (*rotate_halves)(uint16_t* x, int64_t half, const float* cos, const float* sin);
  /// One packed Q8 row to bf16, exact. columns: multiple of 32.
  void (*widen_q8)(const uint8_t* packed, int64_t columns, uint16_t* out);

  /// One row to packed Q4X (columns: multiple of 32) or Q4N (of 16).
  void (*quantize_q4x)(const uint16_t* x, int64_t columns, uint8_t* packed);
  void (*quantize_q4n)(const uint16_t* x, int64_t columns, uint8_t* packed);

  void (*attend_query)(const AttendQuery& p);
  void (*attend_dense)(const AttendDense& p);
  void (*index_tile)(const IndexTile& p);
  /// Returns the column at which the scan stopped; p.count is advanced.
  int64_t (*select_scan)(SelectScan& p);

  void (*hc_dots)(const HcDots& p);
  /// u = bf16(sum_j weights[j] * x[j]), x [copies, d].
  void (*hc_collapse)(const uint16_t* x, const float* weights, uint16_t* u, int64_t copies,
                      int64_t d);
  /// out[k] = bf16(post[k] * y + sum_j mix[j][k] * x[j]); out may equal x.
  void (*hc_post)(const uint16_t* x, const uint16_t* y, const float* post, const float* mix,
                  uint16_t* out, int64_t copies, int64_t d);
  /// y = bf16(mean_j x[j]).
  void (*hc_mean)(const uint16_t* x, uint16_t* y, int64_t copies, int64_t d);

  /// sum_c x[c] * (q_weight[c] * k_weight[c]) * key[c].
  float (*engram_dot)(const uint16_t* x, const uint16_t* key, const uint16_t* q_weight,
                      const uint16_t* k_weight, int64_t d);
  /// x = bf16(x + gate * value).
  void (*add_scaled)(uint16_t* x, const uint16_t* value, float gate, int64_t d);

  /// y = bf16(bf16(silu(gate)) * up).
  void (*silu_mul)(const uint16_t* gate, const uint16_t* up, uint16_t* y, int64_t n);
  /// y[i] = e^x[i].
  void (*exp)(const float* x, float* y, int64_t n);
};

extern const RowKernels kRowKernelsPortable;
extern const RowKernels kRowKernelsAvx2;
extern const RowKernels kRowKernelsAvx512;

}  // namespace cedar::kernels::cpu
