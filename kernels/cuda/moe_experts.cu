#include "kernels/cuda/moe_experts.h"

#include <algorithm>
#include <vector>

#include "core/device_memory.h"
#include "core/units.h"
#include "kernels/cuda/linear_ops.h"
#include "kernels/cuda/plain_products.h"

namespace cedar::kernels::cuda {
namespace {

ExpertEntry entry_of(const ExpertWeights& e) {
  ExpertEntry entry{};
  const PackedWeight* weights[] = {&e.w1, &e.w3, &e.w2};
  for (int i = 0; i < 3; ++i) {
    entry.codes[i] = weights[i]->codes.as<uint8_t>();
    entry.scale[i] = weights[i]->output_scale;
  }
  entry.inner = static_cast<int32_t>(e.w1.out);
  entry.fp4 = is_fp4(e.w1.format) ? 1 : 0;
  return entry;
}

/// Slots a tile: the least width that holds an expert's rows most of the time, were they spread evenly.
int tile_columns(const MoeExpertsParams& p) {
  const double mean = static_cast<double>(p.rows * p.top) / static_cast<double>(p.routed.size());
  for (const int columns : {8, 16, 32, 64, 96}) {
    if (mean * 1.4 <= columns) return columns;
  }
  return 128;
}

template <class T>
T* take(KernelContext& ctx, int64_t count) {
  return ctx.arena->allocate<T>(std::max<int64_t>(count, 1));
}

/// The plan and every slot's row of x, after the choice of experts where that is asked for.
Status fill_slots(KernelContext& ctx, const MoeExpertsParams& p, const MoePlan& plan, const Bf16* x,
                  Bf16* slot_x) {
  if (p.route != nullptr && (fits_route(plan) || fits_choose(plan))) {
    const MoeGateParams& gate = *p.route;
    CEDAR_TRY(const float* products, gate_products(ctx, gate));
    RouteArgs args;
    args.plan = plan;
    args.gate = products;
    args.bias = gate.bias;
    args.bias_image = gate.bias_image;
    args.image_mask = gate.image_mask;
    args.experts = gate.experts;
    args.weights = gate.weights;
    args.route_scale = gate.route_scale;
    args.x = x;
    args.slot_x = slot_x;
    args.d = p.d;
    if (fits_route(plan)) return route(ctx, args);
    CEDAR_CHECK_OK(choose_and_plan(ctx, args));
    return gather_slots(ctx, plan, x, slot_x, p.d);
  }
  if (p.route != nullptr) CEDAR_CHECK_OK(cuda::moe_gate(ctx, *p.route));
  CEDAR_CHECK_OK(make_plan(ctx, plan));
  return gather_slots(ctx, plan, x, slot_x, p.d);
}

}  // namespace

Result<ExpertTable> expert_table(KernelContext& ctx, std::span<const ExpertWeights> routed,
                                 const ExpertWeights* shared) {
  std::vector<ExpertEntry> entries;
  ExpertTable table;
  const auto add = [&](const ExpertWeights& e) -> Status {
    for (const PackedWeight* weight : {&e.w3, &e.w2}) {
      if (is_fp4(weight->format) != is_fp4(e.w1.format)) {
        return make_error(Errc::unsupported,
                          "moe_experts: w1, w3 and w2 of one expert have different formats");
      }
    }
    entries.push_back(entry_of(e));
    table.inner = std::max(table.inner, e.w1.out);
    return {};
  };
  for (const ExpertWeights& e : routed) CEDAR_CHECK_OK(add(e));
  if (shared != nullptr) CEDAR_CHECK_OK(add(*shared));
  const auto bytes = static_cast<int64_t>(entries.size() * sizeof(ExpertEntry));
  CEDAR_TRY(table.entries, Buffer::allocate(ctx.device, bytes));
  CEDAR_CHECK_OK(
      copy_to_device(ctx.device, table.entries.data(), entries.data(), bytes, ctx.cuda_stream));
  CEDAR_CHECK_OK(synchronize(ctx.device, ctx.cuda_stream));
  return std::move(table);
}

Status moe_experts(KernelContext& ctx, const MoeExpertsParams& p) {
  if (p.table == nullptr) {
    CEDAR_TRY(const ExpertTable table, cuda::expert_table(ctx, p.routed, p.shared));
    MoeExpertsParams with_table = p;
    with_table.table = &table;
    CEDAR_CHECK_OK(cuda::moe_experts(ctx, with_table));
    return synchronize(ctx.device, ctx.cuda_stream);  // the table ends here
  }
  const ArenaScope scope(*ctx.arena);
  CEDAR_TRY(const Bf16* x, q8_values(ctx, p.xq, p.rows, p.d));
  MoePlan plan;
  plan.experts = p.route != nullptr ? p.route->experts : p.experts;
  plan.weights = p.route != nullptr ? p.route->weights : p.weights;
  plan.table = p.table->entries.as<ExpertEntry>();
  plan.rows = static_cast<int32_t>(p.rows);
  plan.top = static_cast<int32_t>(p.top);
  plan.expert_count = static_cast<int32_t>(p.routed.size());
  plan.shared = p.shared != nullptr;
  const bool hopper = on_hopper(ctx);
  plan.columns = hopper ? tile_columns(p) : kPlainColumns;
  plan.slot_rows = take<int32_t>(ctx, plan.slots());
  plan.slot_weights = take<float>(ctx, plan.slots());
  plan.row_slots = p.slots != nullptr ? p.slots->row_slots : take<int32_t>(ctx, p.rows * p.top);
  plan.tiles = take<MoeTile>(ctx, plan.most_tiles());
  plan.parts_done = take<int32_t>(ctx, plan.most_tiles());
  plan.tile_count = take<int32_t>(ctx, 1);
  plan.next_item = take<int32_t>(ctx, 1);
  const int64_t pitch = align_up(p.table->inner, kStage);
  Bf16* slot_x = take<Bf16>(ctx, plan.slots() * p.d);
  Bf16* hidden = take<Bf16>(ctx, plan.slots() * pitch);
  Bf16* out = p.slots != nullptr ? p.slots->out : take<Bf16>(ctx, plan.slots() * p.d);
  CEDAR_CHECK_OK(fill_slots(ctx, p, plan, x, slot_x));

  UpArgs up{};
  up.plan = plan;
  up.hidden = hidden;
  up.clamp = p.clamp;
  up.d = static_cast<int>(p.d);
  up.pitch = static_cast<int>(pitch);
  DownArgs down{};
  down.plan = plan;
  down.out = out;
  down.d = up.d;
  if (!hopper) {
    CEDAR_CHECK_OK(plain_experts(ctx, up, down, slot_x));
    return p.slots != nullptr ? Status{} : sum_slots(ctx, plan, out, p.y, p.d);
  }
  switch (plan.columns) {
    case 8: CEDAR_CHECK_OK(multiply_experts<MoeConfig<8>>(ctx, up, down, slot_x)); break;
    case 16: CEDAR_CHECK_OK(multiply_experts<MoeConfig<16>>(ctx, up, down, slot_x)); break;
    case 32: CEDAR_CHECK_OK(multiply_experts<MoeConfig<32>>(ctx, up, down, slot_x)); break;
    case 64: CEDAR_CHECK_OK(multiply_experts<MoeConfig<64>>(ctx, up, down, slot_x)); break;
    case 96: CEDAR_CHECK_OK(multiply_experts<MoeConfig<96>>(ctx, up, down, slot_x)); break;
    default: CEDAR_CHECK_OK(multiply_experts<MoeConfig<128>>(ctx, up, down, slot_x)); break;
  }
  return p.slots != nullptr ? Status{} : sum_slots(ctx, plan, out, p.y, p.d);
}

}  // namespace cedar::kernels::cuda
