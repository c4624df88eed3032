#include <memory>
#include <string>

#include "bench/kernels/bench_data.h"
#include "bench/kernels/cases.h"
#include "kernels/quantize.h"
#include "tests/reference/quantize_reference.h"

namespace cedar::bench {
namespace {

struct QuantizeData {
  std::vector<Bf16> x;
  std::vector<uint8_t> codes, scales;
};

std::string verify_rows(const QuantizeData& data) {
  const size_t count = std::min<size_t>(data.x.size(), 5120);
  std::vector<float> wide;
  for (size_t i = 0; i < count; ++i) wide.push_back(static_cast<float>(data.x[i]));
  const auto want = reference::quantize(reference::Rule::q8, wide);
  for (size_t i = 0; i < count; ++i) {
    if (data.codes[i] != want.codes[i] || data.scales[i / 32] != want.scales[i / 32]) {
      return "element " + std::to_string(i) + " has another code or scale";
    }
  }
  return {};
}

}  // namespace

std::vector<Case> quantize_cases() {
  std::vector<Case> cases;
  for (const int64_t rows : {1, 64, 16384}) {
    constexpr int64_t kColumns = 5120;
    const std::string from = rows > 1000 ? ", from memory" : ", cached";
    cases.push_back({"quantize_q8", "[" + std::to_string(rows) + ", 5120]" + from,
                     [rows](kernels::KernelContext& ctx) -> Result<Prepared> {
                       auto data = std::make_shared<QuantizeData>();
                       data->x = random_bf16(rows * kColumns, 3);
                       data->codes.resize(data->x.size());
                       data->scales.resize(data->x.size() / 32);
                       Prepared prepared;
                       prepared.run = [data, rows, &ctx] {
                         kernels::QuantizeQ8Params p;
                         p.x = data->x.data();
                         p.x_stride = p.columns = kColumns;
                         p.rows = rows;
                         p.out = {data->codes.data(), data->scales.data()};
                         return kernels::quantize_q8(ctx, p);
                       };
                       prepared.verify = [data] { return verify_rows(*data); };
                       prepared.bytes = static_cast<double>(data->x.size()) * (2 + 1 + 1.0 / 32);
                       return prepared;
                     }});
  }
  return cases;
}

}  // namespace cedar::bench
