// Included by row_kernels_<isa>.cpp: the streaming half of top-k.

namespace cedar::kernels::cpu::CEDAR_ISA {

CEDAR_INLINE void append(SelectScan& p, int64_t column, uint32_t hits) {
  while (hits != 0) {
    const int lane = __builtin_ctz(hits);
    hits &= hits - 1;
    p.found_scores[p.count] = p.scores[column + lane];
    p.found_columns[p.count] = static_cast<int32_t>(column + lane);
    ++p.count;
  }
}

static int64_t select_scan(SelectScan& p) {
  const F32x16 threshold = set1(p.threshold);
  int64_t c = p.begin;
  for (; c + 32 <= p.end; c += 32) {
    if (p.capacity - p.count < 32) return c;
    const uint32_t allowed = p.mask == nullptr ? 0xffffffffu : p.mask[c / 32];
    if (allowed == 0) continue;
    const uint32_t hits = greater_mask(load(p.scores + c), threshold) |
                          greater_mask(load(p.scores + c + kLanes), threshold) << kLanes;
    append(p, c, hits & allowed);
  }
  if (c < p.end) {
    if (p.capacity - p.count < 32) return c;
    uint32_t hits = 0;
    for (int64_t i = c; i < p.end; ++i) {
      if (p.scores[i] > p.threshold) hits |= 1u << (i - c);
    }
    append(p, c, hits & (p.mask == nullptr ? 0xffffffffu : p.mask[c / 32]));
  }
  return p.end;
}

}  // namespace cedar::kernels::cpu::CEDAR_ISA
