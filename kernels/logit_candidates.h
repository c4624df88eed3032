#pragma once
// What sampling needs to know of rows of logits, so that the rows themselves can stay on the device: the best
// entries after edits, temperature and noise, and sums over all of them (spec/api.md 7.3).

#include <cstdint>

#include "kernels/kernel_context.h"

namespace cedar::kernels {

/// By what a row's candidates are chosen: the edited logits, those plus Gumbel noise, or those alone but with the sums that
/// min-p, top-k and top-p need.
enum class DrawKind : int32_t { best, noisy, ranked };

/// Changes to one token's logit, in this order. A row names a token once.
struct LogitEdit {
  static constexpr uint32_t kNever = 1;    // minus infinity
  static constexpr uint32_t kSeen = 2;     // repetition penalty
  static constexpr uint32_t kCounted = 4;  // frequency and presence penalties
  int32_t token = 0;
  uint32_t rules = 0;
  float bias = 0;     // added before the penalties
  int32_t count = 0;  // occurrences, for the frequency penalty
};

struct DrawRow {
  uint64_t key = 0, position = 0;  // of the noise, see draw_noise.h
  DrawKind kind = DrawKind::best;
  int32_t first_edit = 0, edits = 0;
  int32_t mask = -1;      // row of masks; -1: every token may come
  float temperature = 1;  // divides; kind best: 1
  float repetition = 1, frequency = 0, presence = 0;
  float floor = 0;  // kind ranked: entries below peak + floor do not count in `mass`; -inf: all do
};

struct DrawStats {
  double sum = 0;      // of exp(value - peak); kind ranked
  double mass = 0;     // of exp(value - total) over the values that count; kind ranked
  double raw_sum = 0;  // of exp(logit - raw_peak); raw_k > 0
  float peak = 0;      // greatest value
  float total = 0;     // peak + float(log(sum)); kind ranked
  float raw_peak = 0;
  int32_t nan = 0;  // 1: some logit is NaN, and nothing else here means anything
};

struct LogitCandidate {
  int32_t token = -1;  // -1: fewer entries than asked for are above minus infinity
  float value = 0;     // edited and divided by the temperature; without noise
  float raw = 0;       // the logit, at most the greatest float
};

/// Exponents are differences rounded to fp32, taken to fp64 and summed there, in any order. Noise is the CPU's to a few units
/// in the last place of fp64; everything else is the CPU's bits.
struct LogitCandidatesParams {
  const float* logits = nullptr;     // [rows, columns]
  const DrawRow* draws = nullptr;    // [rows]
  const LogitEdit* edits = nullptr;  // of all rows
  const uint32_t* masks = nullptr;   // [masks, mask_stride] bit c of word c / 32: c may come
  int64_t mask_stride = 0;           // words, >= ceil(columns / 32)
  int64_t rows = 0, columns = 0;
  bool sums = true;  // false: no row is ranked
  int64_t k = 0;     // 1 <= k <= columns
  LogitCandidate* candidates =
      nullptr;        // [rows, k] the k best, tokens increasing; a tie: lower token
  int64_t raw_k = 0;  // 0: nobody asks for the best logits as they were
  LogitCandidate* raw_best = nullptr;  // [rows, raw_k] likewise; `value` is the logit
  DrawStats* stats = nullptr;          // [rows]
};
Status logit_candidates(KernelContext& ctx, const LogitCandidatesParams& p);

}  // namespace cedar::kernels
