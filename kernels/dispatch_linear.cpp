// Checks parameters once for every back end, then picks the back end. The only such place for quantize.h,
// weights.h, linear.h and moe.h.

#include <initializer_list>
#include <string>
#include <type_traits>

#include "core/device_memory.h"
#include "kernels/cpu/linear_ops.h"
#if defined(CEDAR_HAVE_CUDA)
#include "kernels/cuda/linear_ops.h"
#define CEDAR_ON_CUDA(operation) cuda::operation
#else
#define CEDAR_ON_CUDA(operation) nullptr
#endif

namespace cedar::kernels {
namespace {

Error no_back_end(const char* operation, Device device) {
  return make_error(Errc::unsupported, std::string(operation) +
                                           ": this build has no back end for " + to_string(device));
}

Error invalid(const char* operation, const char* field, const std::string& rule, int64_t value) {
  return make_error(Errc::invalid_argument, std::string(operation) + ": " + field + " must be " +
                                                rule + ", got " + std::to_string(value));
}

struct Pointer {
  const char* field;
  const void* value;
};

Status require(const char* operation, std::initializer_list<Pointer> pointers) {
  for (const Pointer& pointer : pointers) {
    if (pointer.value == nullptr) {
      return make_error(Errc::invalid_argument,
                        std::string(operation) + ": " + pointer.field + " is null");
    }
  }
  return {};
}

bool quantised(WeightFormat format) {
  return format == WeightFormat::fp8_block32 || format == WeightFormat::fp4_group32;
}

Status check(const QuantizeQ8Params& p) {
  constexpr const char* kOp = "quantize_q8";
  if (p.rows < 0) return invalid(kOp, "rows", "at least 0", p.rows);
  if (p.columns <= 0 || p.columns % kQ8Group != 0) {
    return invalid(kOp, "columns", "a positive multiple of 32", p.columns);
  }
  if (p.x_stride < p.columns) {
    return invalid(kOp, "x_stride", "at least " + std::to_string(p.columns), p.x_stride);
  }
  if (p.rows == 0) return {};
  if (p.out.values != nullptr && p.out.codes == nullptr) return require(kOp, {{"x", p.x}});
  return require(kOp, {{"x", p.x}, {"out.codes", p.out.codes}, {"out.scales", p.out.scales}});
}

/// On a GPU values alone will do.
Status require_q8(const char* operation, const Q8Rows& q) {
  if (q.values != nullptr) return {};
  return require(operation, {{"xq.codes", q.codes}, {"xq.scales", q.scales}});
}

Status check(std::span<const WeightView> stacked) {
  constexpr const char* kOp = "pack_weight";
  if (stacked.empty()) return make_error(Errc::invalid_argument, "pack_weight: no views");
  const WeightView& first = stacked.front();
  for (const WeightView& view : stacked) {
    const bool last = &view == &stacked.back();
    if (view.format != first.format) {
      return invalid(kOp, "format", "the same for all views", static_cast<int64_t>(view.format));
    }
    if (view.in != first.in) return invalid(kOp, "in", std::to_string(first.in), view.in);
    if (view.out <= 0) return invalid(kOp, "out", "positive", view.out);
    if (view.in <= 0) return invalid(kOp, "in", "positive", view.in);
    if (quantised(view.format) && view.in % 32 != 0) {
      return invalid(kOp, "in", "a multiple of 32", view.in);
    }
    if (view.format == WeightFormat::fp8_block32 && !last && view.out % 32 != 0) {
      return invalid(kOp, "out of a view that is not the last", "a multiple of 32", view.out);
    }
    CEDAR_CHECK_OK(require(kOp, {{"data", view.data}}));
    if (quantised(view.format)) CEDAR_CHECK_OK(require(kOp, {{"scales", view.scales}}));
  }
  return {};
}

Status check(const LinearParams& p) {
  constexpr const char* kOp = "linear";
  CEDAR_CHECK_OK(require(kOp, {{"weight", p.weight}}));
  if (p.rows < 0) return invalid(kOp, "rows", "at least 0", p.rows);
  if (p.y_dtype != DType::bf16 && p.y_dtype != DType::f32) {
    return make_error(Errc::invalid_argument, "linear: y_dtype must be BF16 or F32, got " +
                                                  std::string(to_string(p.y_dtype)));
  }
  if (p.y_stride < p.weight->out) {
    return invalid(kOp, "y_stride", "at least " + std::to_string(p.weight->out), p.y_stride);
  }
  if (!quantised(p.weight->format) && p.x_stride < p.groups * p.weight->in) {
    return invalid(kOp, "x_stride", "at least " + std::to_string(p.groups * p.weight->in),
                   p.x_stride);
  }
  if (p.groups != 1) {
    const bool fits = p.groups > 1 && p.weight->format == WeightFormat::bf16 &&
                      p.weight->in % 64 == 0 && p.weight->out % (128 * p.groups) == 0 &&
                      p.x_stride % 8 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
    if (!fits) return invalid(kOp, "groups", "1 for this weight and x", p.groups);
  }
  if (p.also != nullptr) {
    const bool alike = quantised(p.weight->format) && p.also->format == p.weight->format &&
                       p.also->in == p.weight->in && p.weight->out % 64 == 0;
    if (!alike)
      return invalid(kOp, "also.out", "of a weight with the same format and inputs", p.also->out);
    CEDAR_CHECK_OK(require(kOp, {{"also_y", p.also_y}}));
  }
  if (p.quantised_y &&
      (p.y_dtype != DType::bf16 || p.weight->out % kQ8Group != 0 || p.also != nullptr)) {
    return invalid(kOp, "out of a quantised y", "a multiple of 32, of one bf16 weight",
                   p.weight->out);
  }
  if (p.rows == 0) return {};
  if (quantised(p.weight->format)) {
    CEDAR_CHECK_OK(require_q8(kOp, p.xq));
    return require(kOp, {{"y", p.y}});
  }
  return require(kOp, {{"x", p.x}, {"y", p.y}});
}

Status check(const MoeGateParams& p) {
  constexpr const char* kOp = "moe_gate";
  CEDAR_CHECK_OK(require(kOp, {{"gate", p.gate}, {"bias", p.bias}}));
  if (p.rows < 0) return invalid(kOp, "rows", "at least 0", p.rows);
  if (quantised(p.gate->format)) {
    return invalid(kOp, "gate's format", "bf16 or f32", static_cast<int64_t>(p.gate->format));
  }
  if (p.gate->in != p.d) return invalid(kOp, "d", std::to_string(p.gate->in), p.d);
  if (p.gate->out != p.expert_count) {
    return invalid(kOp, "expert_count", std::to_string(p.gate->out), p.expert_count);
  }
  if (p.top <= 0 || p.top > p.expert_count) {
    return invalid(kOp, "top", "between 1 and " + std::to_string(p.expert_count), p.top);
  }
  if (p.image_mask != nullptr) CEDAR_CHECK_OK(require(kOp, {{"bias_image", p.bias_image}}));
  if (p.rows == 0) return {};
  return require(kOp, {{"x", p.x}, {"experts", p.experts}, {"weights", p.weights}});
}

Status check_expert(const ExpertWeights& expert, int64_t d) {
  constexpr const char* kOp = "moe_experts";
  for (const PackedWeight* weight : {&expert.w1, &expert.w3, &expert.w2}) {
    if (!quantised(weight->format)) {
      return invalid(kOp, "an expert's format", "FP8 or FP4", static_cast<int64_t>(weight->format));
    }
  }
  if (expert.w1.in != d) return invalid(kOp, "w1.in", std::to_string(d), expert.w1.in);
  if (expert.w3.in != d) return invalid(kOp, "w3.in", std::to_string(d), expert.w3.in);
  if (expert.w3.out != expert.w1.out) {
    return invalid(kOp, "w3.out", std::to_string(expert.w1.out), expert.w3.out);
  }
  if (expert.w2.in != expert.w1.out) {
    return invalid(kOp, "w2.in", std::to_string(expert.w1.out), expert.w2.in);
  }
  if (expert.w2.out != d) return invalid(kOp, "w2.out", std::to_string(d), expert.w2.out);
  return {};
}

Status check(const MoeExpertsParams& p) {
  constexpr const char* kOp = "moe_experts";
  const auto experts = static_cast<int64_t>(p.routed.size());
  if (p.rows < 0) return invalid(kOp, "rows", "at least 0", p.rows);
  if (p.top <= 0 || p.top > experts) {
    return invalid(kOp, "top", "between 1 and " + std::to_string(experts), p.top);
  }
  if (!(p.clamp > 0)) {
    return make_error(Errc::invalid_argument,
                      "moe_experts: clamp must be positive, got " + std::to_string(p.clamp));
  }
  if (p.rows == 0) return {};
  if (p.slots == nullptr) CEDAR_CHECK_OK(require(kOp, {{"y", p.y}}));
  CEDAR_CHECK_OK(require_q8(kOp, p.xq));
  if (p.route != nullptr) return check(*p.route);
  return require(kOp, {{"experts", p.experts}, {"weights", p.weights}});
}

/// Where the host can read them: every chosen expert exists and fits.
Status check_chosen(const MoeExpertsParams& p) {
  const auto experts = static_cast<int64_t>(p.routed.size());
  for (int64_t i = 0; i < p.rows * p.top; ++i) {
    const int32_t expert = p.experts[i];
    if (expert < 0 || expert >= experts) {
      return invalid("moe_experts", "experts", "in [0, " + std::to_string(experts) + ")", expert);
    }
    CEDAR_CHECK_OK(check_expert(p.routed[static_cast<size_t>(expert)], p.d));
  }
  if (p.shared != nullptr) return check_expert(*p.shared, p.d);
  return {};
}

/// Checks, then runs the operation of the context's back end; `on_cuda` is null in builds without it.
template <class Params>
Status run(const char* operation, KernelContext& ctx, const Params& p,
           Status (*on_cpu)(KernelContext&, const Params&),
           Status (*on_cuda)(KernelContext&, const std::type_identity_t<Params>&)) {
  CEDAR_CHECK_OK(check(p));
  const bool cpu = ctx.device.kind == DeviceKind::cpu;
  if (!cpu && on_cuda == nullptr) return no_back_end(operation, ctx.device);
  if (p.rows == 0) return {};
  if (cpu) return on_cpu(ctx, p);
  CEDAR_CHECK_OK(check_device(ctx.device));
  return on_cuda(ctx, p);
}

Status moe_experts_on_cpu(KernelContext& ctx, const MoeExpertsParams& p) {
  if (p.route != nullptr || p.slots != nullptr) {
    return make_error(Errc::unsupported, "moe_experts: route and slots on the CPU");
  }
  CEDAR_CHECK_OK(check_chosen(p));
  return cpu::moe_experts(ctx, p);
}

}  // namespace

Status quantize_q8(KernelContext& ctx, const QuantizeQ8Params& p) {
  return run("quantize_q8", ctx, p, cpu::quantize_q8, CEDAR_ON_CUDA(quantize_q8));
}

Result<Q8Rows> quantize_q8(KernelContext& ctx, const Bf16* x, int64_t rows, int64_t columns) {
  QuantizeQ8Params p;
  p.x = x;
  p.x_stride = columns;
  p.rows = rows;
  p.columns = columns;
  p.out.codes = ctx.arena->allocate<uint8_t>(rows * columns);
  p.out.scales = ctx.arena->allocate<uint8_t>(rows * (columns / kQ8Group));
  if (ctx.device.kind == DeviceKind::cuda) p.out.values = ctx.arena->allocate<Bf16>(rows * columns);
  CEDAR_CHECK_OK(quantize_q8(ctx, p));
  return p.out;
}

Result<PackedWeight> pack_weight(KernelContext& ctx, std::span<const WeightView> stacked) {
  CEDAR_CHECK_OK(check(stacked));
  if (ctx.device.kind == DeviceKind::cpu) return cpu::pack_weight(ctx, stacked);
  Result<PackedWeight> (*on_cuda)(KernelContext&, std::span<const WeightView>) =
      CEDAR_ON_CUDA(pack_weight);
  if (on_cuda == nullptr) return no_back_end("pack_weight", ctx.device);
  CEDAR_CHECK_OK(check_device(ctx.device));
  return on_cuda(ctx, stacked);
}

Status linear(KernelContext& ctx, const LinearParams& p) {
  if (ctx.device.kind == DeviceKind::cpu && (p.groups != 1 || p.also != nullptr || p.quantised_y)) {
    return make_error(Errc::unsupported, "linear: groups, also and quantised_y on the CPU");
  }
  return run("linear", ctx, p, cpu::linear, CEDAR_ON_CUDA(linear));
}

Status moe_gate(KernelContext& ctx, const MoeGateParams& p) {
  return run("moe_gate", ctx, p, cpu::moe_gate, CEDAR_ON_CUDA(moe_gate));
}

Result<ExpertTable> expert_table(KernelContext& ctx, std::span<const ExpertWeights> routed,
                                 const ExpertWeights* shared) {
  if (ctx.device.kind == DeviceKind::cpu) return ExpertTable{};
  if (routed.empty()) return make_error(Errc::invalid_argument, "expert_table: no experts");
  for (const ExpertWeights& expert : routed) CEDAR_CHECK_OK(check_expert(expert, expert.w1.in));
  if (shared != nullptr) CEDAR_CHECK_OK(check_expert(*shared, routed.front().w1.in));
  Result<ExpertTable> (*on_cuda)(KernelContext&, std::span<const ExpertWeights>,
                                 const ExpertWeights*) = CEDAR_ON_CUDA(expert_table);
  if (on_cuda == nullptr) return no_back_end("expert_table", ctx.device);
  CEDAR_CHECK_OK(check_device(ctx.device));
  return on_cuda(ctx, routed, shared);
}

Status moe_experts(KernelContext& ctx, const MoeExpertsParams& p) {
  return run("moe_experts", ctx, p, moe_experts_on_cpu, CEDAR_ON_CUDA(moe_experts));
}

}  // namespace cedar::kernels
