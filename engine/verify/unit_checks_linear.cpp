// Quantisers and linear layers on random input.

#include <algorithm>

#include "engine/verify/unit_checks.h"
#include "kernels/kv_write.h"
#include "kernels/linear.h"
#include "kernels/quantize.h"
#include "kernels/weights.h"

namespace cedar::engine::verify {
namespace {

/// Packed rows taken apart again: codes and scales as the golden data keeps them, and the values.
struct Unpacked {
  std::vector<uint8_t> codes, scales;
  std::vector<float> values;
};

Unpacked unpack(kernels::RowFormat format, const std::vector<uint8_t>& packed, int64_t rows,
                int64_t columns) {
  const int64_t row_bytes = kernels::packed_row_bytes(format, columns);
  const int64_t code_bytes = format == kernels::RowFormat::q8 ? columns : columns / 2;
  Unpacked out;
  std::vector<Bf16> values(static_cast<size_t>(columns));
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* row = packed.data() + r * row_bytes;
    out.codes.insert(out.codes.end(), row, row + code_bytes);
    out.scales.insert(out.scales.end(), row + code_bytes, row + row_bytes);
    kernels::dequantize_row(format, row, columns, values.data());
    const std::vector<float> wide = widen(values.data(), columns);
    out.values.insert(out.values.end(), wide.begin(), wide.end());
  }
  return out;
}

/// The path that fills caches: kv_write without norm and rotation.
Result<std::vector<uint8_t>> write_rows(kernels::KernelContext& ctx, kernels::RowFormat format,
                                        const Bf16* x, int64_t rows, int64_t columns) {
  const int64_t bytes = rows * kernels::packed_row_bytes(format, columns);
  kernels::KvWriteParams p;
  p.format = format;
  p.x = x;
  p.x_stride = columns;
  p.rows = rows;
  p.columns = columns;
  p.dense = ctx.arena->allocate<uint8_t>(bytes);
  CEDAR_CHECK_OK(kernels::kv_write(ctx, p));
  return output(ctx, p.dense, bytes);
}

void check_row_format(Session& session, GoldenFile& file, const Kind& kind,
                      const std::string& prefix, kernels::RowFormat format) {
  const TensorView* x = file.tensor("act_quant.x", DType::bf16, {kAny, kAny});
  const TensorView* codes = file.tensor(prefix + ".q", DType::u8, {kAny, kAny});
  const TensorView* scales = file.tensor(prefix + ".scale", DType::u8, {kAny, kAny});
  const TensorView* values = file.tensor(prefix + ".inplace", DType::bf16, {kAny, kAny});
  if (x == nullptr || codes == nullptr || scales == nullptr || values == nullptr) return;
  const int64_t rows = x->shape[0];
  const int64_t columns = x->shape[1];
  Report& report = session.report();
  if (columns % kernels::kQ8Group != 0) {
    return report.fail(kind, prefix, "act_quant.x: columns are no multiple of 32");
  }
  ArenaScope scope(*session.ctx().arena);
  const auto packed =
      write_rows(session.ctx(), format, input<Bf16>(session.ctx(), *x), rows, columns);
  if (!packed) return report.fail(kind, prefix, packed.error());
  const Unpacked found = unpack(format, *packed, rows, columns);
  report.check(kind, count_different(found.codes, integers(*codes)), prefix + ".q");
  report.check(kind, count_different(found.scales, integers(*scales)), prefix + ".scale");
  report.check(kind, count_different(found.values, floats(*values)), prefix + ".inplace");
}

/// The path in front of FP8 and FP4 linears: codes and scales apart.
void check_activations(Session& session, GoldenFile& file) {
  const TensorView* x = file.tensor("act_quant.x", DType::bf16, {kAny, kAny});
  const TensorView* codes = file.tensor("act_quant.q", DType::u8, {kAny, kAny});
  const TensorView* scales = file.tensor("act_quant.scale", DType::u8, {kAny, kAny});
  if (x == nullptr || codes == nullptr || scales == nullptr) return;
  if (x->shape[1] % kernels::kQ8Group != 0) return;  // said by check_row_format
  const int64_t count = x->elements();
  kernels::KernelContext& ctx = session.ctx();
  ArenaScope scope(*ctx.arena);
  const auto q = kernels::quantize_q8(ctx, input<Bf16>(ctx, *x), x->shape[0], x->shape[1]);
  if (!q) return session.report().fail(kActQuant, "quantize_q8", q.error());
  const std::vector<uint8_t> found = output(ctx, q->codes, count);
  const std::vector<uint8_t> found_scales = output(ctx, q->scales, count / kernels::kQ8Group);
  session.report().check(kActQuant, count_different(found, integers(*codes)),
                         "act_quant.q (linear)");
  session.report().check(kActQuant, count_different(found_scales, integers(*scales)),
                         "act_quant.scale (linear)");
}

void check_e4m3_table(Session& session, GoldenFile& file) {
  const TensorView* table = file.tensor("e4m3_table", DType::f32, {256});
  if (table == nullptr) return;
  std::vector<float> found, expected;
  for (int code = 0; code < 256; ++code) {
    // The recording's stand-in type has numbers only; the two NaN codes have none to compare.
    if ((code & 0x7f) == 0x7f) continue;
    found.push_back(e4m3_to_float(static_cast<uint8_t>(code)));
    expected.push_back(table->as<float>()[static_cast<size_t>(code)]);
  }
  session.report().check(kE4m3Table, count_different(found, expected), "e4m3_table");
}

void check_gemm(Session& session, GoldenFile& file, const Kind& kind, const Kind& elements,
                const std::string& prefix, kernels::WeightFormat format) {
  const bool fp8 = format == kernels::WeightFormat::fp8_block32;
  const TensorView* x = file.tensor("gemm.x", DType::bf16, {kAny, kAny});
  const TensorView* w = file.tensor(prefix + ".w", fp8 ? DType::e4m3 : DType::i8, {kAny, kAny});
  const TensorView* scale = file.tensor(prefix + ".w_scale", DType::e8m0, {kAny, kAny});
  const TensorView* out = file.tensor(prefix + ".out", DType::bf16, {kAny, kAny});
  if (x == nullptr || w == nullptr || scale == nullptr || out == nullptr) return;
  kernels::WeightView view;
  view.format = format;
  view.out = w->shape[0];
  view.in = fp8 ? w->shape[1] : w->shape[1] * 2;
  view.data = w->data;
  view.scales = static_cast<const uint8_t*>(scale->data);
  const int64_t rows = x->shape[0];
  const std::vector<int64_t> scale_shape = {fp8 ? (view.out + 31) / 32 : view.out, view.in / 32};
  Report& report = session.report();
  if (x->shape[1] != view.in || view.in % 32 != 0 || scale->shape != scale_shape) {
    return report.fail(kind, prefix, "sizes of x, w and w_scale do not belong together");
  }
  kernels::KernelContext& ctx = session.ctx();
  ArenaScope scope(*ctx.arena);
  const auto weight = kernels::pack_weight(ctx, view);
  if (!weight) return report.fail(kind, prefix, weight.error());
  const auto xq = kernels::quantize_q8(ctx, input<Bf16>(ctx, *x), rows, view.in);
  if (!xq) return report.fail(kind, prefix, xq.error());
  Bf16* y = ctx.arena->allocate<Bf16>(rows * view.out);
  kernels::LinearParams p;
  p.weight = &*weight;
  p.xq = *xq;
  p.y = y;
  p.y_stride = view.out;
  p.rows = rows;
  if (Status status = kernels::linear(ctx, p); !status) {
    return report.fail(kind, prefix, status.error());
  }
  const std::vector<float> found = widened_output(ctx, y, rows * view.out);
  report.check(kind, relative_l2(found, floats(*out)), prefix + ".out");
  report.check(elements, worst_bf16_steps(found, floats(*out), view.out), prefix + ".out");
}

}  // namespace

void check_linear_units(Session& session, GoldenFile& file) {
  check_row_format(session, file, kActQuant, "act_quant", kernels::RowFormat::q8);
  check_activations(session, file);
  check_row_format(session, file, kFp4E8m0, "fp4_e8m0", kernels::RowFormat::q4x);
  check_row_format(session, file, kFp4E4m3, "fp4_e4m3", kernels::RowFormat::q4n);
  check_e4m3_table(session, file);
  check_gemm(session, file, kFp8Gemm, kFp8GemmSteps, "fp8_gemm",
             kernels::WeightFormat::fp8_block32);
  check_gemm(session, file, kFp4Gemm, kFp4GemmSteps, "fp4_gemm",
             kernels::WeightFormat::fp4_group32);
}

}  // namespace cedar::engine::verify
