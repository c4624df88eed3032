#include "bench/kernels/bench_data.h"

#include <cstring>
#include <string>

#include "core/units.h"

namespace cedar::bench {

std::vector<Bf16> random_bf16(int64_t count, uint64_t seed) {
  Random random(seed);
  std::vector<Bf16> values(static_cast<size_t>(count));
  for (Bf16& value : values) value = Bf16(random.normal());
  return values;
}

CheckpointWeight random_weight(kernels::WeightFormat format, int64_t out, int64_t in,
                               uint64_t seed) {
  using kernels::WeightFormat;
  Random random(seed);
  CheckpointWeight weight;
  switch (format) {
    case WeightFormat::bf16: {
      weight.codes.resize(static_cast<size_t>(out * in * 2));
      for (size_t i = 0; i < weight.codes.size(); i += 2) {
        const Bf16 value(random.normal() / 16);
        std::memcpy(weight.codes.data() + i, &value, sizeof value);
      }
      break;
    }
    case WeightFormat::f32: {
      weight.codes.resize(static_cast<size_t>(out * in * 4));
      for (size_t i = 0; i < weight.codes.size(); i += 4) {
        const float value = random.normal() / 16;
        std::memcpy(weight.codes.data() + i, &value, sizeof value);
      }
      break;
    }
    case WeightFormat::fp8_block32:
      weight.codes.resize(static_cast<size_t>(out * in));
      weight.scales.assign(static_cast<size_t>(ceil_div(out, 32) * (in / 32)), 120);
      for (uint8_t& code : weight.codes) code = float_to_e4m3(random.normal() * 8);
      break;
    case WeightFormat::fp4_group32:
      weight.codes.resize(static_cast<size_t>(out * in / 2));
      weight.scales.assign(static_cast<size_t>(out * (in / 32)), 121);
      for (uint8_t& code : weight.codes) code = static_cast<uint8_t>(random.next() >> 40);
      break;
  }
  weight.view = {format, out, in, weight.codes.data(),
                 weight.scales.empty() ? nullptr : weight.scales.data()};
  return weight;
}

std::string describe(kernels::WeightFormat format, int64_t out, int64_t in) {
  const char* name = "bf16";
  if (format == kernels::WeightFormat::f32) name = "f32";
  if (format == kernels::WeightFormat::fp8_block32) name = "fp8";
  if (format == kernels::WeightFormat::fp4_group32) name = "fp4";
  return std::string(name) + " [" + std::to_string(out) + ", " + std::to_string(in) + "]";
}

int64_t copies_beyond_cache(int64_t bytes) {
  constexpr int64_t kBeyond = 192_MiB;
  return ceil_div(kBeyond, bytes) + 1;
}

}  // namespace cedar::bench
