#include "kernels/engram.h"

#include "kernels/linear.h"
#include "tests/reference/attention_reference.h"
#include "tests/support/backends.h"
#include "tests/support/safetensors_lite.h"

namespace cedar::kernels {
namespace {

class Engram : public test::EachBackend {
 protected:
  struct Gate {
    std::vector<Bf16> x, kv, q_weight, k_weight;
    std::vector<uint8_t> image_mask;
    int64_t rows, copies, d;
  };
  std::vector<Bf16> run(const Gate& g) {
    auto x = upload(g.x), kv = upload(g.kv), q_weight = upload(g.q_weight),
         k_weight = upload(g.k_weight);
    auto mask = upload(g.image_mask);
    EngramGateParams p;
    p.x = x.data();
    p.kv = kv.data();
    p.q_weight = q_weight.data();
    p.k_weight = k_weight.data();
    p.image_mask = g.image_mask.empty() ? nullptr : mask.data();
    p.eps = 1e-20f;
    p.rows = g.rows;
    p.copies = g.copies;
    p.d = g.d;
    test::expect_ok(engram_gate(ctx(), p));
    return x.host();
  }
};

TEST_P(Engram, WidensEveryCodeExactly) {
  for (const int64_t dim : {32, 64, 256}) {
    constexpr int64_t kRows = 3, kColumns = 5;
    const int64_t bytes = dim + dim / 32;
    auto packed = test::random_bytes(kRows * kColumns * bytes, 71);
    for (int64_t r = 0; r < kRows * kColumns; ++r) {
      for (int64_t i = 0; i < dim; ++i) {
        uint8_t& code = packed[static_cast<size_t>(r * bytes + i)];
        if (r < 2) code = static_cast<uint8_t>(i + r * dim);  // all of them, subnormals included
        if ((code & 0x7f) == 0x7f) code = 0;
      }
      for (int64_t i = dim; i < bytes; ++i) {
        uint8_t& scale = packed[static_cast<size_t>(r * bytes + i)];
        scale = static_cast<uint8_t>(100 + scale % 40);
      }
    }
    auto source = upload(packed);
    auto out = reserve<Bf16>(kRows * kColumns * dim);
    test::expect_ok(engram_widen(ctx(), {.rows_packed = source.data(),
                                         .out = out.data(),
                                         .rows = kRows,
                                         .columns = kColumns,
                                         .dim = dim}));
    const auto got = out.host();
    for (int64_t r = 0; r < kRows * kColumns; ++r) {
      for (int64_t i = 0; i < dim; ++i) {
        const uint8_t* row = packed.data() + r * bytes;
        const Bf16 want(e4m3_to_float(row[i]) * e8m0_to_float(row[dim + i / 32]));
        ASSERT_EQ(got[static_cast<size_t>(r * dim + i)], want) << r << " " << i;
      }
    }
  }
}

TEST_P(Engram, GateFollowsTheFormula) {
  for (const auto& [copies, d] : {std::pair<int64_t, int64_t>{4, 160}, {2, 37}, {4, 5120}}) {
    Gate g{test::random_bf16(3 * copies * d, 72),
           test::random_bf16(3 * (copies + 1) * d, 73),
           test::random_bf16(copies * d, 74),
           test::random_bf16(copies * d, 75),
           {0, 1, 0},
           3,
           copies,
           d};
    // Keys that agree with x open the gate, so that it does not stay near one half.
    for (int64_t c = 0; c < copies * d; ++c)
      g.kv[static_cast<size_t>(c)] = g.x[static_cast<size_t>(c)];
    const auto got = run(g);
    const auto part = [d = d](const std::vector<Bf16>& all, int64_t i) {
      return test::widened(
          std::span(all).subspan(static_cast<size_t>(i * d), static_cast<size_t>(d)));
    };
    std::vector<double> want;
    for (int64_t r = 0; r < 3; ++r) {
      const auto value = part(g.kv, r * (copies + 1) + copies);
      for (int64_t j = 0; j < copies; ++j) {
        auto x = part(g.x, r * copies + j);
        const double gate =
            g.image_mask[static_cast<size_t>(r)] != 0
                ? 0
                : test::engram_gate_reference(x, part(g.kv, r * (copies + 1) + j),
                                              part(g.q_weight, j), part(g.k_weight, j), 1e-20);
        for (size_t c = 0; c < x.size(); ++c) want.push_back(x[c] + gate * value[c]);
      }
    }
    EXPECT_LT(test::relative_l2(std::span<const Bf16>(got), std::span<const double>(want)), 2.5e-3)
        << d;
    // An image row keeps its very bits.
    for (int64_t c = copies * d; c < 2 * copies * d; ++c) {
      ASSERT_EQ(got[static_cast<size_t>(c)], g.x[static_cast<size_t>(c)]);
    }
  }
}

TEST_P(Engram, ZeroRowsGiveAFiniteGate) {
  const auto got = run({std::vector<Bf16>(64),
                        std::vector<Bf16>(128, Bf16(1.0f)),
                        test::random_bf16(64, 1),
                        test::random_bf16(64, 2),
                        {},
                        1,
                        1,
                        64});
  // dot = 0: gate = sigmoid(sqrt(1e-6)).
  for (const Bf16 x : got) EXPECT_NEAR(static_cast<float>(x), 0.50025f, 2e-3f);
}

TEST_P(Engram, TheFirstLayersModuleEqualsTheReferenceProgram) {
  const std::string root = CEDAR_SOURCE_DIR;
  const auto units = test::SafetensorsLite::open(root + "/tests/golden/units.safetensors");
  const auto model = test::SafetensorsLite::open_checkpoint(root + "/tests/golden/mini");
  const std::string prefix = "layers.0.engram.";
  const auto& shape = units.at("engram_unit.x").shape;  // [rows, copies, d]
  const int64_t rows = shape[0], copies = shape[1], d = shape[2];
  const int64_t columns = units.at("engram_unit.hash_ids").shape[1];
  const auto ids = units.at("engram_unit.hash_ids").as<int64_t>();
  const int64_t dim = model.at(prefix + "embed.weight").shape[1], groups = dim / 32;
  std::vector<uint8_t> fetched;
  for (const int64_t id : ids) {
    const auto codes =
        model.at(prefix + "embed.weight").as<uint8_t>().subspan(static_cast<size_t>(id * dim));
    const auto scales =
        model.at(prefix + "embed.scale").as<uint8_t>().subspan(static_cast<size_t>(id * groups));
    fetched.insert(fetched.end(), codes.begin(), codes.begin() + dim);
    fetched.insert(fetched.end(), scales.begin(), scales.begin() + groups);
  }
  auto d_fetched = upload(fetched);
  auto wide = reserve<Bf16>(rows * columns * dim);
  test::expect_ok(engram_widen(ctx(), {.rows_packed = d_fetched.data(),
                                       .out = wide.data(),
                                       .rows = rows,
                                       .columns = columns,
                                       .dim = dim}));
  WeightView view;
  view.format = WeightFormat::fp8_block32;
  view.out = model.at(prefix + "wkv.weight").shape[0];
  view.in = columns * dim;
  view.data = model.at(prefix + "wkv.weight").data;
  view.scales = model.at(prefix + "wkv.scale").as<uint8_t>().data();
  const auto weight = pack_weight(ctx(), view);
  ASSERT_TRUE(weight.has_value());
  auto codes = reserve<uint8_t>(rows * view.in), scales = reserve<uint8_t>(rows * view.in / 32);
  LinearParams project;
  project.weight = &*weight;
  project.xq = {codes.data(), scales.data()};
  test::expect_ok(quantize_q8(ctx(), {.x = wide.data(),
                                      .x_stride = view.in,
                                      .out = project.xq,
                                      .rows = rows,
                                      .columns = view.in}));
  auto kv = reserve<Bf16>(rows * view.out);
  project.y = kv.data();
  project.y_stride = view.out;
  project.rows = rows;
  test::expect_ok(linear(ctx(), project));

  const auto as_bf16 = [](const TensorView& v) {
    const auto span = v.as<Bf16>();
    return std::vector<Bf16>(span.begin(), span.end());
  };
  const auto got = run({as_bf16(units.at("engram_unit.x")),
                        kv.host(),
                        as_bf16(model.at(prefix + "q_weight")),
                        as_bf16(model.at(prefix + "k_weight")),
                        {},
                        rows,
                        copies,
                        d});
  const auto want = units.at("engram_unit.out").as<Bf16>();
  EXPECT_LT(test::relative_l2(std::span<const Bf16>(got), want), 4e-3);
  EXPECT_LE(test::most_bf16_steps(got, want), 2);
}

CEDAR_EACH_BACKEND(Engram);

}  // namespace
}  // namespace cedar::kernels
