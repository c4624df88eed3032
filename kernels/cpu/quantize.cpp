#include "kernels/quantize.h"

#include <algorithm>

#include "kernels/cpu/isa_kernels.h"
#include "kernels/cpu/linear_ops.h"
#include "kernels/cpu/tile_rows.h"

namespace cedar::kernels {
namespace cpu {

Status quantize_q8(KernelContext& ctx, const QuantizeQ8Params& p) {
  const IsaKernels& isa = isa_kernels(ctx.isa);
  // About 8 us of work: half a nanosecond an element.
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(p.columns, 1));
  ctx.pool->parallel_for(p.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      isa.quantize_q8(bf16_bits(p.x + row * p.x_stride), p.columns, p.out.codes + row * p.columns,
                      p.out.scales + row * (p.columns / kQ8Group));
    }
  });
  return {};
}

}  // namespace cpu
}  // namespace cedar::kernels
