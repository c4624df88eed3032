#include "kernels/moe.h"

#include <cmath>
#include <cstring>
#include <optional>

#include "tests/reference/linear_reference.h"
#include "tests/support/backends.h"
#include "tests/support/safetensors_lite.h"

namespace cedar::kernels {
namespace {

using test::CpuContext;
using test::DeviceArray;

// --- the router --------------------------------------------------------------------------------------------

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

struct RouterCase {
  std::vector<Bf16> gate;  // [experts, d]
  std::vector<float> bias, bias_image;
  int64_t d = 0, expert_count = 0, top = 0;
  float route_scale = 1.5f;
};

Routed run_gate(KernelContext& ctx, const RouterCase& c, std::span<const Bf16> x,
                const uint8_t* image_mask) {
  WeightView view;
  view.out = c.expert_count;
  view.in = c.d;
  view.data = c.gate.data();
  const auto packed = pack_weight(ctx, view);
  EXPECT_TRUE(packed.has_value());
  const Device device = ctx.device;
  const DeviceArray<Bf16> input(device, x);
  const DeviceArray<float> bias(device, c.bias), bias_image(device, c.bias_image);
  const auto rows = static_cast<int64_t>(x.size()) / c.d;
  std::optional<DeviceArray<uint8_t>> mask;
  if (image_mask != nullptr) {
    mask.emplace(device, std::span<const uint8_t>(image_mask, static_cast<size_t>(rows)));
  }
  DeviceArray<int32_t> experts(device, rows * c.top, -7);
  DeviceArray<float> weights(device, rows * c.top, -7.0f);
  MoeGateParams p;
  p.x = input.data();
  p.gate = &*packed;
  p.bias = bias.data();
  p.bias_image = bias_image.data();
  p.image_mask = mask ? mask->data() : nullptr;
  p.rows = rows;
  p.d = c.d;
  p.expert_count = c.expert_count;
  p.top = c.top;
  p.route_scale = c.route_scale;
  p.experts = experts.data();
  p.weights = weights.data();
  test::expect_ok(moe_gate(ctx, p));
  return {experts.host(), weights.host()};
}

class MoeOn : public test::EachBackend {};
CEDAR_EACH_BACKEND(MoeOn);

TEST_P(MoeOn, GateEqualsGolden) {
  const auto golden =
      test::SafetensorsLite::open(CEDAR_SOURCE_DIR "/tests/golden/units.safetensors");
  const auto mini = test::SafetensorsLite::open_checkpoint(CEDAR_SOURCE_DIR "/tests/golden/mini");
  const std::string layer = "layers.2.ffn.gate.";
  const auto weight = mini.at(layer + "weight").as<Bf16>();
  const auto bias = mini.at(layer + "bias").as<float>();
  const auto bias_image = mini.at(layer + "bias_vl").as<float>();
  const auto want_experts = golden.at("gate2.experts").as<int32_t>();
  const auto want_weights = golden.at("gate2.weights").as<float>();

  RouterCase c;
  c.gate.assign(weight.begin(), weight.end());
  c.bias.assign(bias.begin(), bias.end());
  c.bias_image.assign(bias_image.begin(), bias_image.end());
  c.d = golden.at("gate2.x").shape[1];
  c.expert_count = static_cast<int64_t>(bias.size());
  c.top = golden.at("gate2.experts").shape[1];
  c.route_scale = 1.25f;  // routed_scaling_factor of the mini model's config.json
  const Routed got = run_gate(ctx(), c, golden.at("gate2.x").as<Bf16>(),
                              golden.at("gate2.image_mask").as<uint8_t>().data());
  EXPECT_TRUE(
      std::equal(want_experts.begin(), want_experts.end(), got.experts.begin(), got.experts.end()));
  EXPECT_LT((test::relative_l2<float, float>(got.weights, want_weights)), 1e-5);
}

TEST_P(MoeOn, GateEqualsTheReference) {
  RouterCase c;
  c.d = 200;
  c.expert_count = 128;
  c.top = 6;
  c.gate = test::random_bf16(c.expert_count * c.d, 1, 0.3f);
  for (const Bf16 x : test::random_bf16(c.expert_count, 2)) c.bias.push_back(static_cast<float>(x));
  for (const Bf16 x : test::random_bf16(c.expert_count, 3))
    c.bias_image.push_back(static_cast<float>(x));
  const auto x =
      test::random_bf16(40 * c.d, 4, 2.0f);  // scores on both sides of softplus' threshold 20
  std::vector<uint8_t> image(40);
  for (size_t i = 0; i < image.size(); ++i) image[i] = i % 3 == 0;
  const Routed got = run_gate(ctx(), c, x, image.data());

  WeightView view;
  view.out = c.expert_count;
  view.in = c.d;
  view.data = c.gate.data();
  const auto scores = reference::linear(view, x);
  for (size_t row = 0; row < 40; ++row) {
    const auto want = reference::route(std::span(scores).subspan(row * 128, 128),
                                       image[row] != 0 ? c.bias_image : c.bias, 6, 1.5);
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(got.experts[row * 6 + i], want.experts[i]) << row;
      EXPECT_NEAR(static_cast<double>(got.weights[row * 6 + i]), want.weights[i], 1e-5);
    }
  }
}

TEST_P(MoeOn, TiesGoToTheLowerExpert) {
  RouterCase c;
  c.d = 32;
  c.expert_count = 40;
  c.gate.assign(static_cast<size_t>(c.d * c.expert_count), Bf16(0.0f));
  c.bias.assign(40, 0.0f);
  c.bias[17] = c.bias[30] = 1.0f;
  c.bias_image = c.bias;
  const auto x = test::random_bf16(c.d, 4);
  c.top = 4;
  EXPECT_EQ(run_gate(ctx(), c, x, nullptr).experts, (std::vector<int32_t>{17, 30, 0, 1}));
  c.top = 40;  // every expert chosen
  const Routed all = run_gate(ctx(), c, x, nullptr);
  EXPECT_EQ(all.experts.back(), 39);
  for (const float w : all.weights) EXPECT_NEAR(w, 1.5f / 40, 1e-7);
}

TEST_P(MoeOn, BiasChoosesButDoesNotWeigh) {
  RouterCase c;
  c.d = 32;
  c.expert_count = 3;
  c.top = 2;
  c.gate.assign(96, Bf16(0.0f));
  c.bias = {0.0f, 100.0f, 50.0f};
  c.bias_image = {100.0f, 0.0f, 50.0f};
  const auto x = test::random_bf16(2 * c.d, 4);
  const uint8_t image[] = {0, 1};
  const Routed got = run_gate(ctx(), c, x, image);
  EXPECT_EQ(got.experts, (std::vector<int32_t>{1, 2, 0, 2}));
  for (const float w : got.weights) EXPECT_NEAR(w, 0.75f, 1e-6);
}

// --- the experts -------------------------------------------------------------------------------------------

/// Random experts in checkpoint layout and packed: FP4 routed, FP8 shared.
class Experts {
 public:
  Experts(KernelContext& ctx, int64_t count, int64_t d, int64_t inner) : d_(d), inner_(inner) {
    for (int64_t e = 0; e <= count; ++e) {
      const bool shared = e == count;
      const auto format = shared ? WeightFormat::fp8_block32 : WeightFormat::fp4_group32;
      reference::ExpertViews v;
      v.w1 = view(format, inner, d);
      v.w3 = view(format, inner, d);
      v.w2 = view(format, d, inner);
      ExpertWeights packed;
      packed.w1 = std::move(*pack_weight(ctx, v.w1));
      packed.w3 = std::move(*pack_weight(ctx, v.w3));
      packed.w2 = std::move(*pack_weight(ctx, v.w2));
      if (shared) {
        shared_ = std::move(packed);
        shared_views_ = v;
      } else {
        routed_.push_back(std::move(packed));
        routed_views_.push_back(v);
      }
    }
  }

  std::vector<Bf16> run(KernelContext& ctx, std::span<const Bf16> x,
                        std::span<const int32_t> experts, std::span<const float> weights,
                        float clamp, bool with_shared = true, bool with_table = true) const {
    const DeviceArray<Bf16> input(ctx.device, x);
    const DeviceArray<int32_t> chosen(ctx.device, experts);
    const DeviceArray<float> chosen_weights(ctx.device, weights);
    DeviceArray<Bf16> y(ctx.device, static_cast<int64_t>(x.size()), Bf16(std::nanf("")));
    MoeExpertsParams p;
    p.rows = static_cast<int64_t>(x.size()) / d_;
    p.d = d_;
    p.top = static_cast<int64_t>(experts.size()) / p.rows;
    p.xq = *quantize_q8(ctx, input.data(), p.rows, d_);
    p.experts = chosen.data();
    p.weights = chosen_weights.data();
    p.routed = routed_;
    p.shared = with_shared ? &shared_ : nullptr;
    p.clamp = clamp;
    p.y = y.data();
    const auto table = expert_table(ctx, p.routed, p.shared);
    EXPECT_TRUE(table.has_value());
    if (with_table) p.table = &*table;
    test::expect_ok(moe_experts(ctx, p));
    return y.host();
  }

  std::vector<Bf16> reference_row(std::span<const Bf16> x, std::span<const int32_t> experts,
                                  std::span<const float> weights, double clamp) const {
    std::vector<float> sum(x.size(), 0.0f);
    std::vector<size_t> order;
    for (size_t i = 0; i < experts.size(); ++i) order.push_back(i);
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return experts[a] < experts[b]; });
    const auto add = [&](const std::vector<Bf16>& y) {
      for (size_t i = 0; i < y.size(); ++i) sum[i] += static_cast<float>(y[i]);
    };
    for (const size_t i : order) {
      add(reference::expert(routed_views_[static_cast<size_t>(experts[i])], x,
                            static_cast<double>(weights[i]), clamp));
    }
    add(reference::expert(shared_views_, x, 1.0, clamp));
    std::vector<Bf16> y;
    for (const float value : sum) y.push_back(Bf16(value));
    return y;
  }

 private:
  WeightView view(WeightFormat format, int64_t out, int64_t in) {
    const auto seed = static_cast<uint32_t>(bytes_.size());
    const bool fp8 = format == WeightFormat::fp8_block32;
    bytes_.push_back(test::random_bytes(fp8 ? out * in : out * in / 2, seed));
    for (uint8_t& code : bytes_.back()) {
      if (fp8 && (code & 0x78) == 0x78) code ^= 0x40;  // no NaN, and a deviation close to FP4's
    }
    WeightView v{format, out, in, bytes_.back().data(), nullptr};
    bytes_.push_back(
        test::random_bytes((fp8 ? (out + 31) / 32 : out) * (in / 32), seed + 1, 121, 123));
    if (fp8) {
      for (uint8_t& scale : bytes_.back()) scale = static_cast<uint8_t>(scale - 4);
    }
    v.scales = bytes_.back().data();
    return v;
  }

  int64_t d_, inner_;
  std::vector<std::vector<uint8_t>> bytes_;
  std::vector<reference::ExpertViews> routed_views_;
  reference::ExpertViews shared_views_;
  std::vector<ExpertWeights> routed_;
  ExpertWeights shared_;
};

/// `top` different experts per row, in no particular order, with weights.
Routed random_routing(int64_t rows, int64_t experts, int64_t top, uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(0.1f, 0.9f);
  std::vector<int32_t> all;
  for (int64_t e = 0; e < experts; ++e) all.push_back(static_cast<int32_t>(e));
  Routed routed;
  for (int64_t row = 0; row < rows; ++row) {
    std::shuffle(all.begin(), all.end(), engine);
    routed.experts.insert(routed.experts.end(), all.begin(), all.begin() + top);
    for (int64_t i = 0; i < top; ++i) routed.weights.push_back(uniform(engine));
  }
  return routed;
}

TEST_P(MoeOn, ExpertsEqualTheReference) {
  constexpr int64_t kRows = 7, kD = 160, kInner = 96;
  const Experts experts(ctx(), 5, kD, kInner);
  const auto x = test::random_bf16(kRows * kD, 1);
  const Routed routed = random_routing(kRows, 5, 3, 2);
  for (const float clamp : {2.5f, 1e6f}) {
    const auto got = experts.run(ctx(), x, routed.experts, routed.weights, clamp);
    std::vector<Bf16> want;
    for (size_t row = 0; row < kRows; ++row) {
      const auto y = experts.reference_row(
          std::span(x).subspan(row * kD, kD), std::span(routed.experts).subspan(row * 3, 3),
          std::span(routed.weights).subspan(row * 3, 3), static_cast<double>(clamp));
      want.insert(want.end(), y.begin(), y.end());
    }
    // A sum that lies at a rounding boundary may flip a code of the inner quantiser: one code is 2^-4 of an
    // element of a row of 96.
    EXPECT_LT((test::relative_l2<Bf16, Bf16>(got, want)), 4e-3) << clamp;
  }
}

TEST_P(MoeOn, RowDoesNotDependOnTheOthers) {
  constexpr int64_t kD = 96;
  const Experts experts(ctx(), 12, kD, 64);
  constexpr size_t kMost = 130;  // more rows than one block of tile_rows
  const auto x = test::random_bf16(kMost * kD, 1);
  const Routed routed = random_routing(kMost, 12, 3, 2);
  const std::span<const Bf16> all_x(x);
  const std::span<const int32_t> all_experts(routed.experts);
  const std::span<const float> all_weights(routed.weights);
  const auto batch = [&](size_t first, size_t rows) {
    return experts.run(ctx(), all_x.subspan(first * kD, rows * kD),
                       all_experts.subspan(first * 3, rows * 3),
                       all_weights.subspan(first * 3, rows * 3), 2.0f);
  };
  std::vector<Bf16> alone;
  for (size_t row = 0; row < kMost; ++row) {
    const auto y = batch(row, 1);
    alone.insert(alone.end(), y.begin(), y.end());
  }
  for (const size_t rows : {2, 3, 5, 8, 17, 64, 130}) {
    const size_t first = kMost - rows;
    const auto y = batch(first, rows);
    ASSERT_EQ(std::memcmp(y.data(), alone.data() + first * kD, y.size() * sizeof(Bf16)), 0) << rows;
  }
}

TEST_P(MoeOn, ManyRowsAnExpert) {
  // Every width of the CUDA back end's tiles (8 to 128 slots) with full and partial ones, and experts without rows.
  constexpr int64_t kD = 160, kInner = 96;
  const Experts experts(ctx(), 9, kD, kInner);
  for (const int64_t rows : {12, 40, 90, 200, 700}) {
    SCOPED_TRACE(rows);
    const auto x = test::random_bf16(rows * kD, 1);
    const Routed routed = random_routing(rows, 8, 2, 2);  // never the last expert
    const auto got = experts.run(ctx(), x, routed.experts, routed.weights, 10.0f);
    std::vector<Bf16> want, some;
    for (size_t row = 0; row < static_cast<size_t>(rows); row += 7) {
      const auto y = experts.reference_row(std::span(x).subspan(row * kD, kD),
                                           std::span(routed.experts).subspan(row * 2, 2),
                                           std::span(routed.weights).subspan(row * 2, 2), 10.0);
      want.insert(want.end(), y.begin(), y.end());
      some.insert(some.end(), got.begin() + static_cast<long>(row * kD),
                  got.begin() + static_cast<long>((row + 1) * kD));
    }
    EXPECT_LT((test::relative_l2<Bf16, Bf16>(some, want)), 4e-3);
  }
}

TEST_P(MoeOn, TableForTheCallGivesTheSame) {
  const Experts experts(ctx(), 6, 64, 64);
  const auto x = test::random_bf16(5 * 64, 1);
  const Routed routed = random_routing(5, 6, 3, 2);
  EXPECT_EQ(experts.run(ctx(), x, routed.experts, routed.weights, 10.0f, true, true),
            experts.run(ctx(), x, routed.experts, routed.weights, 10.0f, true, false));
}

TEST_P(MoeOn, OrderOfTheChosenExpertsDoesNotMatter) {
  const Experts experts(ctx(), 6, 64, 64);
  const auto x = test::random_bf16(64, 1);
  const int32_t forward[] = {0, 3, 5}, backward[] = {5, 3, 0};
  const float weights[] = {0.2f, 0.5f, 0.8f}, reversed[] = {0.8f, 0.5f, 0.2f};
  EXPECT_EQ(experts.run(ctx(), x, forward, weights, 10.0f),
            experts.run(ctx(), x, backward, reversed, 10.0f));
}

TEST_P(MoeOn, SharedExpertIsOptional) {
  const Experts experts(ctx(), 2, 64, 32);
  const auto x = test::random_bf16(64, 1);
  const int32_t chosen[] = {1};
  const float weight[] = {0.0f};
  const auto none = experts.run(ctx(), x, chosen, weight, 10.0f, false);
  for (const Bf16 y : none) EXPECT_EQ(static_cast<float>(y), 0.0f);
  EXPECT_NE(experts.run(ctx(), x, chosen, weight, 10.0f), none);
}

TEST(MoeExperts, RefusesBadParameters) {
  CpuContext ctx;
  std::vector<uint8_t> codes(32), scales(1);
  std::vector<Bf16> y(32);
  const float weight = 1;
  int32_t expert = 3;
  std::vector<ExpertWeights> routed(2);
  MoeExpertsParams p;
  p.xq = {codes.data(), scales.data()};
  p.experts = &expert;
  p.weights = &weight;
  p.routed = routed;
  p.y = y.data();
  p.rows = 1;
  p.d = 32;
  p.top = 1;
  p.clamp = 10;
  const auto message = [&] {
    const Status status = moe_experts(*ctx, p);
    return status.has_value() ? std::string("accepted") : status.error().message();
  };
  EXPECT_EQ(message(), "invalid_argument: moe_experts: experts must be in [0, 2), got 3");
  expert = 1;
  EXPECT_EQ(message(),
            "invalid_argument: moe_experts: an expert's format must be FP8 or FP4, got 0");
  p.top = 3;
  EXPECT_EQ(message(), "invalid_argument: moe_experts: top must be between 1 and 2, got 3");
  p.top = 1;
  p.clamp = 0;
  EXPECT_EQ(message(), "invalid_argument: moe_experts: clamp must be positive, got 0.000000");
}

}  // namespace
}  // namespace cedar::kernels
