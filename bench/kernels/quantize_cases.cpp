#include <memory>
#include <string>

#include "bench/kernels/bench_data.h"
#include "bench/kernels/cases.h"
#include "bench/kernels/device_data.h"
#include "kernels/quantize.h"
#include "tests/reference/quantize_reference.h"

namespace cedar::bench {
namespace {

struct QuantizeData {
  DeviceData<Bf16> x, values;
  DeviceData<uint8_t> codes, scales;
};

std::string verify_rows(const QuantizeData& data) {
  const size_t count = std::min<size_t>(data.x.size(), 5120);
  std::vector<float> wide;
  for (size_t i = 0; i < count; ++i) wide.push_back(static_cast<float>(data.x.given()[i]));
  const auto want = reference::quantize(reference::Rule::q8, wide);
  const std::vector<uint8_t> codes = data.codes.written(), scales = data.scales.written();
  for (size_t i = 0; i < count; ++i) {
    if (codes[i] != want.codes[i] || scales[i / 32] != want.scales[i / 32]) {
      return "element " + std::to_string(i) + " has another code or scale";
    }
  }
  return {};
}

Result<Prepared> prepare(kernels::KernelContext& ctx, int64_t rows) {
  constexpr int64_t kColumns = 5120;
  const int64_t count = rows * kColumns;
  const bool cuda = ctx.device.kind == DeviceKind::cuda;
  auto data = std::make_shared<QuantizeData>();
  CEDAR_TRY(data->x, DeviceData<Bf16>::make(ctx.device, random_bf16(count, 3)));
  CEDAR_TRY(data->codes, DeviceData<uint8_t>::make(ctx.device, count));
  CEDAR_TRY(data->scales, DeviceData<uint8_t>::make(ctx.device, count / 32));
  if (cuda) {
    CEDAR_TRY(data->values, DeviceData<Bf16>::make(ctx.device, count));
  }
  Prepared prepared;
  prepared.run = [data, rows, cuda, &ctx] {
    kernels::QuantizeQ8Params p;
    p.x = data->x.data();
    p.x_stride = p.columns = kColumns;
    p.rows = rows;
    p.out = {data->codes.data(), data->scales.data(), cuda ? data->values.data() : nullptr};
    return kernels::quantize_q8(ctx, p);
  };
  prepared.verify = [data] { return verify_rows(*data); };
  prepared.bytes = static_cast<double>(count) * (2 + 1 + 1.0 / 32 + (cuda ? 2 : 0));
  return prepared;
}

}  // namespace

std::vector<Case> quantize_cases(Device) {
  std::vector<Case> cases;
  for (const int64_t rows : {1, 64, 16384}) {
    const std::string from = rows > 1000 ? ", from memory" : ", cached";
    cases.push_back({"quantize_q8", "[" + std::to_string(rows) + ", 5120]" + from,
                     [rows](kernels::KernelContext& ctx) { return prepare(ctx, rows); }});
  }
  return cases;
}

}  // namespace cedar::bench
