#include <algorithm>
#include <cmath>

#include "core/units.h"
#include "kernels/cpu/attention_ops.h"
#include "kernels/cpu/row_context.h"

namespace cedar::kernels {

static_assert(kMaxHcCopies == cpu::kHcMaxCopies);

void hc_split(const float* m, const float* base, const float* scale, int64_t copies, float hc_eps,
              int32_t iterations, float* pre, float* post, float* mix) {
  const int64_t n = copies;
  for (int64_t j = 0; j < n; ++j) {
    pre[j] = cpu::sigmoid_scalar(m[j] * scale[0] + base[j]) + hc_eps;
    post[j] = 2.0f * cpu::sigmoid_scalar(m[n + j] * scale[1] + base[n + j]);
  }
  // First row step: a softmax with eps added to the quotient; every later step adds it to the
  // divisor.
  for (int64_t j = 0; j < n; ++j) {
    float* row = mix + j * n;
    for (int64_t k = 0; k < n; ++k)
      row[k] = m[2 * n + j * n + k] * scale[2] + base[2 * n + j * n + k];
    const float largest = *std::max_element(row, row + n);
    float sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      row[k] = cpu::exp_scalar(row[k] - largest);
      sum += row[k];
    }
    for (int64_t k = 0; k < n; ++k) row[k] = row[k] / sum + hc_eps;
  }
  const auto normalise_columns = [&] {
    for (int64_t k = 0; k < n; ++k) {
      float sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += mix[j * n + k];
      for (int64_t j = 0; j < n; ++j) mix[j * n + k] /= sum + hc_eps;
    }
  };
  normalise_columns();
  for (int32_t i = 1; i < iterations; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float* row = mix + j * n;
      float sum = 0;
      for (int64_t k = 0; k < n; ++k) sum += row[k];
      for (int64_t k = 0; k < n; ++k) row[k] /= sum + hc_eps;
    }
    normalise_columns();
  }
}

namespace cpu {
namespace {

// Outputs of one unit of work when there are fewer row tiles than threads.
constexpr int64_t kOutputTile = 4;

/// fn z for all rows: [rows, outputs].
void hc_products(KernelContext& ctx, const HcPreParams& p, int64_t outputs, float* dots) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t n = p.copies * p.d;
  const int64_t row_tiles = ceil_div(p.rows, kHcRowTile);
  const bool split_outputs = row_tiles < ctx.pool->threads();
  const int64_t output_tile = split_outputs ? kOutputTile : outputs;
  const int64_t output_tiles = ceil_div(outputs, output_tile);
  WorkerScratch scratch(ctx, kHcRowTile * output_tile * 16 * 4);
  ctx.pool->parallel_for(row_tiles * output_tiles, 1, [&](int64_t begin, int64_t end) {
    const WorkerScratch::Lease lease(scratch);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t row = unit / output_tiles * kHcRowTile;
      const int64_t output = unit % output_tiles * output_tile;
      HcDots d;
      d.fn = p.weights.fn + output * n;
      d.z = raw(p.x + row * n);
      d.dots = dots + row * outputs + output;
      d.dots_stride = outputs;
      d.rows = std::min(kHcRowTile, p.rows - row);
      d.outputs = std::min(output_tile, outputs - output);
      d.n = n;
      d.scratch = reinterpret_cast<float*>(lease.data());
      k.hc_dots(d);
    }
  });
}

}  // namespace

Status hc_pre(KernelContext& ctx, const HcPreParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t n = p.copies * p.d;
  const int64_t outputs = p.copies * (2 + p.copies);
  ArenaScope scope(*ctx.arena);
  float* dots = ctx.arena->allocate<float>(p.rows * outputs);
  hc_products(ctx, p, outputs, dots);
  ctx.pool->parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint16_t* x = raw(p.x + i * n);
      const float mean = k.square_sum(x, n) / static_cast<float>(n);
      const float factor = 1.0f / std::sqrt(mean + p.norm_eps);
      float* m = dots + i * outputs;
      for (int64_t o = 0; o < outputs; ++o) m[o] *= factor;
      hc_split(m, p.weights.base, p.weights.scale, p.copies, p.hc_eps, p.sinkhorn_iterations,
               p.pre + i * p.copies, p.post + i * p.copies, p.mix + i * p.copies * p.copies);
      uint16_t* u = raw(p.u + i * p.d);
      k.hc_collapse(x, p.pre_in + i * p.copies, u, p.copies, p.d);
      k.rms_norm(u, raw(p.norm_weight), u, p.d, p.norm_eps);
    }
  });
  return {};
}

Status hc_post(KernelContext& ctx, const HcPostParams& p) {
  const RowKernels& k = row_kernels(ctx);
  const int64_t n = p.copies * p.d;
  ctx.pool->parallel_for(p.rows, 2, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      k.hc_post(raw(p.x + i * n), raw(p.y + i * p.d), p.post + i * p.copies,
                p.mix + i * p.copies * p.copies, raw(p.x_out + i * n), p.copies, p.d);
    }
  });
  return {};
}

Status hc_collapse(KernelContext& ctx, const HcCollapseParams& p) {
  const RowKernels& k = row_kernels(ctx);
  ctx.pool->parallel_for(p.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      uint16_t* u = raw(p.u + i * p.d);
      k.hc_collapse(raw(p.x + i * p.copies * p.d), p.pre + i * p.copies, u, p.copies, p.d);
      if (p.raw != nullptr) std::copy_n(u, p.d, raw(p.raw + i * p.d));
      if (p.norm_weight != nullptr) k.rms_norm(u, raw(p.norm_weight), u, p.d, p.norm_eps);
    }
  });
  return {};
}

Status hc_mean(KernelContext& ctx, const HcMeanParams& p) {
  const RowKernels& k = row_kernels(ctx);
  ctx.pool->parallel_for(p.rows, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      k.hc_mean(raw(p.x + i * p.copies * p.d), raw(p.y + i * p.y_stride), p.copies, p.d);
    }
  });
  return {};
}

}  // namespace cpu
}  // namespace cedar::kernels
