#include <cstring>

#include "kernels/cpu/attention_ops.h"

namespace cedar::kernels::cpu {

Status embed(KernelContext& ctx, const EmbedParams& p) {
  ctx.pool->parallel_for(p.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t image = p.override_index != nullptr ? p.override_index[i] : -1;
      const Bf16* source =
          image >= 0 ? p.override_rows + image * p.d : p.table + int64_t{p.ids[i]} * p.d;
      for (int64_t j = 0; j < p.copies; ++j) {
        std::memcpy(p.x + (i * p.copies + j) * p.d, source,
                    static_cast<size_t>(p.d) * sizeof(Bf16));
      }
    }
  });
  return {};
}

Status gather_rows(KernelContext& ctx, const GatherRowsParams& p) {
  const std::byte* src = static_cast<const std::byte*>(p.src);
  std::byte* dst = static_cast<std::byte*>(p.dst);
  ctx.pool->parallel_for(p.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (p.index[i] < 0) continue;
      std::memcpy(dst + i * p.row_bytes, src + p.index[i] * p.row_bytes,
                  static_cast<size_t>(p.row_bytes));
    }
  });
  return {};
}

// In order on one thread: should two rows have one target, the later one stays.
Status scatter_rows(KernelContext&, const GatherRowsParams& p) {
  const std::byte* src = static_cast<const std::byte*>(p.src);
  std::byte* dst = static_cast<std::byte*>(p.dst);
  for (int64_t i = 0; i < p.rows; ++i) {
    if (p.index[i] < 0) continue;
    std::memcpy(dst + p.index[i] * p.row_bytes, src + i * p.row_bytes,
                static_cast<size_t>(p.row_bytes));
  }
  return {};
}

}  // namespace cedar::kernels::cpu
