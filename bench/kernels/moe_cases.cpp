#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include "bench/kernels/bench_data.h"
#include "bench/kernels/cases.h"
#include "bench/kernels/device_data.h"
#include "kernels/moe.h"
#include "tests/reference/linear_reference.h"

namespace cedar::bench {
namespace {

using kernels::KernelContext;
using kernels::WeightFormat;

constexpr int64_t kD = 5120, kInner = 2304, kTop = 6;
// On the CPU, 16 of the release's 384 experts: 300 MB, and no cache holds the six that one row needs. On a
// GPU all 384, of four different contents.
constexpr int64_t kContents = 4;
int64_t expert_count(Device device) { return device.kind == DeviceKind::cpu ? 16 : 384; }

struct Expert {
  CheckpointWeight w1, w3, w2;
};

struct MoeData {
  std::vector<Expert> checkpoint;  // contents of the routed experts in turn, then the shared one's
  std::vector<kernels::ExpertWeights> packed;  // the routed experts, then the shared one
  kernels::ExpertTable table;
  DeviceData<Bf16> x, y, values;
  DeviceData<uint8_t> codes, scales;
  DeviceData<int32_t> experts;
  DeviceData<float> weights;
  kernels::MoeExpertsParams params;

  const Expert& content(int32_t expert) const {
    return checkpoint[static_cast<size_t>(expert % kContents)];
  }
};

std::string verify_row(const MoeData& data) {
  const auto row = static_cast<size_t>(data.params.rows - 1);
  const auto d = static_cast<size_t>(kD), top = static_cast<size_t>(kTop);
  const std::span<const Bf16> x(data.x.given().data() + row * d, d);
  std::vector<std::vector<Bf16>> parts(top + 1);
  std::vector<std::thread> threads;
  for (size_t i = 0; i <= top; ++i) {
    threads.emplace_back([&, i] {
      const bool shared = i == top;
      const size_t at = row * top + (shared ? 0 : i);
      const Expert& e = shared ? data.checkpoint.back() : data.content(data.experts.given()[at]);
      const double weight = shared ? 1.0 : static_cast<double>(data.weights.given()[at]);
      parts[i] = reference::expert({e.w1.view, e.w3.view, e.w2.view}, x, weight, 10.0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> want(d, 0.0);
  for (const std::vector<Bf16>& part : parts) {
    for (size_t i = 0; i < d; ++i) want[i] += static_cast<double>(static_cast<float>(part[i]));
  }
  const std::vector<Bf16> y = data.y.written();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < d; ++i) {
    const double got = static_cast<double>(static_cast<float>(y[row * d + i]));
    difference += (got - want[i]) * (got - want[i]);
    norm += want[i] * want[i];
  }
  const double error = std::sqrt(difference / norm);
  // Rounding to bf16 alone is 0.0017; a few flipped codes of the inner quantiser add to it.
  return error < 5e-3 ? std::string() : "relative L2 of the last row is " + std::to_string(error);
}

Result<Prepared> prepare_experts(KernelContext& ctx, int64_t rows) {
  const Device device = ctx.device;
  const int64_t count = expert_count(device);
  auto data = std::make_shared<MoeData>();
  for (int64_t e = 0; e <= kContents; ++e) {
    const auto format = e < kContents ? WeightFormat::fp4_group32 : WeightFormat::fp8_block32;
    const auto seed = static_cast<uint64_t>(3 * e);
    data->checkpoint.push_back({random_weight(format, kInner, kD, seed),
                                random_weight(format, kInner, kD, seed + 1),
                                random_weight(format, kD, kInner, seed + 2)});
  }
  for (int64_t e = 0; e <= count; ++e) {
    const Expert& expert =
        e == count ? data->checkpoint.back() : data->content(static_cast<int32_t>(e));
    kernels::ExpertWeights packed;
    CEDAR_TRY(packed.w1, kernels::pack_weight(ctx, expert.w1.view));
    CEDAR_TRY(packed.w3, kernels::pack_weight(ctx, expert.w3.view));
    CEDAR_TRY(packed.w2, kernels::pack_weight(ctx, expert.w2.view));
    data->packed.push_back(std::move(packed));
  }
  const std::span routed = std::span(data->packed).first(static_cast<size_t>(count));
  CEDAR_TRY(data->table, kernels::expert_table(ctx, routed, &data->packed.back()));
  CEDAR_TRY(data->x, DeviceData<Bf16>::make(device, random_bf16(rows * kD, 2)));
  CEDAR_TRY(data->y, DeviceData<Bf16>::make(device, rows * kD));
  CEDAR_TRY(data->codes, DeviceData<uint8_t>::make(device, rows * kD));
  CEDAR_TRY(data->scales, DeviceData<uint8_t>::make(device, rows * kD / 32));
  kernels::QuantizeQ8Params q;
  q.x = data->x.data();
  q.x_stride = q.columns = kD;
  q.rows = rows;
  q.out = {data->codes.data(), data->scales.data()};
  if (device.kind == DeviceKind::cuda) {
    CEDAR_TRY(data->values, DeviceData<Bf16>::make(device, rows * kD));
    q.out.values = data->values.data();
  }
  CEDAR_CHECK_OK(kernels::quantize_q8(ctx, q));

  Random random(7);
  std::set<int32_t> used;
  std::vector<int32_t> experts;
  for (int64_t row = 0; row < rows; ++row) {
    std::set<int32_t> chosen;
    while (chosen.size() < static_cast<size_t>(kTop))
      chosen.insert(static_cast<int32_t>(random.below(count)));
    experts.insert(experts.end(), chosen.begin(), chosen.end());
    used.insert(chosen.begin(), chosen.end());
  }
  CEDAR_TRY(data->experts, DeviceData<int32_t>::make(device, std::move(experts)));
  CEDAR_TRY(data->weights, DeviceData<float>::make(device, rows * kTop, 0.25f));

  kernels::MoeExpertsParams& p = data->params;
  p.xq = q.out;
  p.experts = data->experts.data();
  p.weights = data->weights.data();
  p.routed = routed;
  p.shared = &data->packed.back();
  p.table = &data->table;
  p.clamp = 10;
  p.y = data->y.data();
  p.rows = rows;
  p.d = kD;
  p.top = kTop;

  Prepared prepared;
  prepared.run = [data, &ctx] { return kernels::moe_experts(ctx, data->params); };
  prepared.verify = [data] { return verify_row(*data); };
  const auto expert_bytes = [](const kernels::ExpertWeights& e) {
    return static_cast<double>(e.w1.bytes() + e.w3.bytes() + e.w2.bytes());
  };
  prepared.bytes = static_cast<double>(used.size()) * expert_bytes(data->packed.front()) +
                   expert_bytes(data->packed.back()) + static_cast<double>(rows * kD * 3);
  prepared.flops = 2.0 * 3 * static_cast<double>(rows * (kTop + 1) * kD * kInner);
  prepared.bound = Bound::bf16;
  return prepared;
}

struct GateData {
  CheckpointWeight checkpoint;
  kernels::PackedWeight packed;
  DeviceData<Bf16> x;
  DeviceData<float> bias, weights;
  DeviceData<int32_t> experts;
  kernels::MoeGateParams params;
};

std::string verify_gate(const GateData& data) {
  const int64_t row = data.params.rows - 1;
  const std::span<const Bf16> x(data.x.given().data() + row * kD, static_cast<size_t>(kD));
  const auto want =
      reference::route(reference::linear(data.checkpoint.view, x), data.bias.given(), kTop, 1.5);
  const std::vector<int32_t> experts = data.experts.written();
  const std::vector<float> weights = data.weights.written();
  for (int64_t i = 0; i < kTop; ++i) {
    const auto at = static_cast<size_t>(row * kTop + i), j = static_cast<size_t>(i);
    if (experts[at] != want.experts[j]) return "another expert at place " + std::to_string(i);
    if (std::fabs(static_cast<double>(weights[at]) - want.weights[j]) > 1e-5) {
      return "weight " + std::to_string(i) + " is " + std::to_string(weights[at]);
    }
  }
  return {};
}

Result<Prepared> prepare_gate(KernelContext& ctx, int64_t rows) {
  constexpr int64_t kGateExperts = 384;
  auto data = std::make_shared<GateData>();
  data->checkpoint = random_weight(WeightFormat::bf16, kGateExperts, kD, 1);
  CEDAR_TRY(data->packed, kernels::pack_weight(ctx, data->checkpoint.view));
  CEDAR_TRY(data->x, DeviceData<Bf16>::make(ctx.device, random_bf16(rows * kD, 2)));
  CEDAR_TRY(data->bias, DeviceData<float>::make(ctx.device, kGateExperts, 0.1f));
  CEDAR_TRY(data->weights, DeviceData<float>::make(ctx.device, rows * kTop));
  CEDAR_TRY(data->experts, DeviceData<int32_t>::make(ctx.device, rows * kTop));
  kernels::MoeGateParams& p = data->params;
  p.x = data->x.data();
  p.gate = &data->packed;
  p.bias = data->bias.data();
  p.experts = data->experts.data();
  p.weights = data->weights.data();
  p.rows = rows;
  p.d = kD;
  p.expert_count = kGateExperts;
  p.top = kTop;
  p.route_scale = 1.5f;
  Prepared prepared;
  prepared.run = [data, &ctx] { return kernels::moe_gate(ctx, data->params); };
  prepared.verify = [data] { return verify_gate(*data); };
  prepared.bytes = static_cast<double>(data->packed.bytes() + rows * kD * 2);
  prepared.flops = 2.0 * static_cast<double>(rows * kD * kGateExperts);
  prepared.bound = Bound::bf16;
  return prepared;
}

}  // namespace

std::vector<Case> moe_cases(Device device) {
  const bool cuda = device.kind == DeviceKind::cuda;
  std::vector<int64_t> gate_rows = {1, 64, 512}, expert_rows = {1, 8, 64, 512};
  if (cuda) {
    gate_rows.push_back(4096);
    expert_rows.insert(expert_rows.end(), {4096, 16384});
  }
  std::vector<Case> cases;
  for (const int64_t rows : gate_rows) {
    cases.push_back({"moe_gate", "384 experts, rows " + std::to_string(rows) + ", cached",
                     [rows](KernelContext& ctx) { return prepare_gate(ctx, rows); }});
  }
  for (const int64_t rows : expert_rows) {
    cases.push_back({"moe_experts",
                     "5120 x 2304, 6 of " + std::to_string(expert_count(device)) +
                         " + shared, rows " + std::to_string(rows),
                     [rows](KernelContext& ctx) { return prepare_experts(ctx, rows); }});
  }
  return cases;
}

}  // namespace cedar::bench
