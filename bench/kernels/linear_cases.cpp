#include <cmath>
#include <memory>
#include <string>

#include "bench/kernels/bench_data.h"
#include "bench/kernels/cases.h"
#include "bench/kernels/cuda_measure.h"
#include "bench/kernels/device_data.h"
#include "kernels/linear.h"
#include "tests/reference/linear_reference.h"

namespace cedar::bench {
namespace {

using kernels::KernelContext;
using kernels::WeightFormat;

struct LinearData {
  CheckpointWeight weight;
  std::vector<kernels::PackedWeight> copies;
  size_t next = 0;
  DeviceData<Bf16> x, y, values;
  DeviceData<uint8_t> codes, scales;
  kernels::LinearParams params;
};

bool quantised(WeightFormat format) {
  return format == WeightFormat::fp8_block32 || format == WeightFormat::fp4_group32;
}

/// A few outputs against double sums.
std::string verify_samples(const LinearData& data) {
  const kernels::WeightView& view = data.weight.view;
  const std::vector<Bf16> y = data.y.written();
  Random random(5);
  for (int sample = 0; sample < 24; ++sample) {
    const int64_t row = random.below(data.params.rows), n = random.below(view.out);
    const int64_t group = n / (view.out / data.params.groups);
    const std::span<const Bf16> x(
        data.x.given().data() + row * data.params.x_stride + group * view.in,
        static_cast<size_t>(view.in));
    const std::vector<double> input = reference::linear_input(view.format, x);
    double want = 0, norm = 0;
    for (int64_t k = 0; k < view.in; ++k) {
      const double product = input[static_cast<size_t>(k)] * reference::weight_value(view, n, k);
      want += product;
      norm += product * product;
    }
    const auto got =
        static_cast<double>(static_cast<float>(y[static_cast<size_t>(row * view.out + n)]));
    // Half a bf16 step, and fp32 rounding in proportion to the terms of the sum.
    if (!(std::fabs(got - want) <= std::fabs(want) * 0x1p-8 + std::sqrt(norm) * 1e-5)) {
      return "output [" + std::to_string(row) + ", " + std::to_string(n) + "] is " +
             std::to_string(got) + ", not " + std::to_string(want);
    }
  }
  return {};
}

struct Shape {
  WeightFormat format;
  int64_t out, in, rows;
  bool from_memory;
  const char* role;
  int64_t groups = 1;
};

Result<Prepared> prepare(KernelContext& ctx, const Shape& s) {
  auto data = std::make_shared<LinearData>();
  data->weight = random_weight(s.format, s.out, s.in, 1);
  const auto bytes = static_cast<int64_t>(data->weight.codes.size() + data->weight.scales.size());
  const int64_t copies = s.from_memory ? copies_beyond_cache(bytes) : 1;
  for (int64_t i = 0; i < copies; ++i) {
    CEDAR_TRY(kernels::PackedWeight packed, kernels::pack_weight(ctx, data->weight.view));
    data->copies.push_back(std::move(packed));
  }
  CEDAR_TRY(data->x, DeviceData<Bf16>::make(ctx.device, random_bf16(s.rows * s.in * s.groups, 2)));
  CEDAR_TRY(data->y, DeviceData<Bf16>::make(ctx.device, s.rows * s.out));
  kernels::LinearParams& p = data->params;
  p.x = data->x.data();
  p.x_stride = s.in * s.groups;
  p.groups = s.groups;
  p.y = data->y.data();
  p.y_stride = s.out;
  p.rows = s.rows;
  if (quantised(s.format)) {
    const int64_t count = s.rows * s.in;
    CEDAR_TRY(data->codes, DeviceData<uint8_t>::make(ctx.device, count));
    CEDAR_TRY(data->scales, DeviceData<uint8_t>::make(ctx.device, count / 32));
    p.xq = {data->codes.data(), data->scales.data()};
    if (ctx.device.kind == DeviceKind::cuda) {
      CEDAR_TRY(data->values, DeviceData<Bf16>::make(ctx.device, count));
      p.xq.values = data->values.data();
    }
    kernels::QuantizeQ8Params q;
    q.x = p.x;
    q.x_stride = s.in;
    q.out = p.xq;
    q.rows = s.rows;
    q.columns = s.in;
    CEDAR_CHECK_OK(kernels::quantize_q8(ctx, q));
  }
  Prepared prepared;
  prepared.run = [data, &ctx] {
    data->params.weight = &data->copies[data->next];
    data->next = (data->next + 1) % data->copies.size();
    return kernels::linear(ctx, data->params);
  };
  prepared.verify = [data] { return verify_samples(*data); };
  prepared.bytes = static_cast<double>(
      bytes + s.rows * (s.groups * s.in * (quantised(s.format) ? 1 : 2) + s.out * 2));
  prepared.flops = 2.0 * static_cast<double>(s.rows * s.in * s.out);
  prepared.bound = s.format == WeightFormat::f32 ? Bound::f32 : Bound::bf16;
  return prepared;
}

/// What the vendor's library takes for the same product of bf16 numbers. Not verified: it is no operation of
/// this program.
Result<Prepared> prepare_library(KernelContext& ctx, const Shape& s) {
  struct Data {
    DeviceData<Bf16> weight, x, y;
  };
  auto data = std::make_shared<Data>();
  CEDAR_TRY(data->weight, DeviceData<Bf16>::make(ctx.device, random_bf16(s.out * s.in, 1)));
  CEDAR_TRY(data->x, DeviceData<Bf16>::make(ctx.device, random_bf16(s.rows * s.in, 2)));
  CEDAR_TRY(data->y, DeviceData<Bf16>::make(ctx.device, s.rows * s.out));
  const BfProduct p{data->weight.data(), data->x.data(), data->y.data(), s.rows, s.out, s.in};
  CEDAR_TRY(std::function<Status()> product, library_product(ctx, p));
  Prepared prepared;
  prepared.run = [data, product] { return product(); };
  prepared.verify = [] { return std::string(); };
  prepared.bytes = 2.0 * static_cast<double>(s.out * s.in + s.rows * (s.in + s.out));
  prepared.flops = 2.0 * static_cast<double>(s.rows * s.in * s.out);
  prepared.bound = Bound::bf16;
  return prepared;
}

}  // namespace

std::vector<Case> linear_cases(Device device) {
  std::vector<Case> cases;
  const auto add = [&](const Shape& s) {
    const std::string from = s.from_memory ? ", from memory" : s.rows == 1 ? ", cached" : "";
    cases.push_back({"linear",
                     describe(s.format, s.out, s.in) + " rows " + std::to_string(s.rows) + from +
                         " (" + s.role + ")",
                     [s](KernelContext& ctx) { return prepare(ctx, s); }});
  };
  // The release's layers.
  const Shape layers[] = {{WeightFormat::fp8_block32, 1280, 5120, 0, false, "wq_a"},
                          {WeightFormat::fp8_block32, 32768, 1280, 0, false, "wq_b"},
                          {WeightFormat::fp8_block32, 5120, 8192, 0, false, "wo_b"},
                          {WeightFormat::fp8_block32, 2304, 5120, 0, false, "shared w1"},
                          {WeightFormat::fp4_group32, 2304, 5120, 0, false, "expert w1"},
                          {WeightFormat::fp4_group32, 5120, 2304, 0, false, "expert w2"},
                          {WeightFormat::bf16, 1024, 4096, 0, false, "wo_a, one group"},
                          {WeightFormat::bf16, 16384, 5120, 0, false, "an eighth of the head"}};
  if (device.kind == DeviceKind::cuda) {
    std::vector<Shape> shapes(std::begin(layers), std::end(layers));
    shapes.push_back({WeightFormat::bf16, 8192, 4096, 0, false, "wo_a, 8 groups", 8});
    for (Shape s : shapes) {
      for (const int64_t rows : {1, 8, 64, 512, 4096}) {
        s.rows = rows;
        s.from_memory = rows <= 64;
        add(s);
        if (rows > 64 && s.groups == 1) {
          cases.push_back({"cublaslt",
                           "bf16 [" + std::to_string(s.out) + ", " + std::to_string(s.in) +
                               "] rows " + std::to_string(rows) + " (for comparison)",
                           [s](KernelContext& ctx) { return prepare_library(ctx, s); }});
        }
      }
    }
    return cases;
  }
  for (Shape s : layers) {
    s.rows = 1;
    s.from_memory = true;
    add(s);
    s.from_memory = false;
    if (s.out * s.in < 16'000'000) add(s);
    for (const int64_t rows : {4, 8, 64, 512}) {
      s.rows = rows;
      s.from_memory = false;
      add(s);
    }
  }
  // The demo model's sizes.
  for (const int64_t rows : {1, 64}) {
    add({WeightFormat::fp8_block32, 320, 320, rows, false, "small"});
    add({WeightFormat::bf16, 1024, 320, rows, false, "small"});
    add({WeightFormat::f32, 24, 1280, rows, false, "small"});
  }
  return cases;
}

}  // namespace cedar::bench
