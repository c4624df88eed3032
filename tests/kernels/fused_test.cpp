// Operations that a GPU joins into one launch give the bits of the operations one by one.

#include <cmath>

#include "kernels/hyper_connection.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "kernels/query_window.h"
#include "kernels/rope.h"
#include "kernels/sparse_attention.h"
#include "tests/support/backends.h"

namespace cedar::kernels {
namespace {

using test::DeviceArray;

class Fused : public test::EachBackend {
 protected:
  bool gpu() const { return test::on_cuda(GetParam()); }

  PackedWeight weight(WeightFormat format, int64_t out, int64_t in, uint32_t seed) {
    const auto bf16 = test::random_bf16(out * in, seed, 0.3f);
    const auto codes = test::random_bytes(out * in, seed, 0, 0x7e);
    const auto scales = test::random_bytes(out * (in / 32), seed + 1, 112, 120);
    WeightView view;
    view.format = format;
    view.out = out;
    view.in = in;
    view.data = format == WeightFormat::bf16 ? static_cast<const void*>(bf16.data()) : codes.data();
    view.scales = format == WeightFormat::bf16 ? nullptr : scales.data();
    auto packed = pack_weight(ctx(), view);
    EXPECT_TRUE(packed.has_value()) << (packed ? "" : packed.error().message());
    return std::move(*packed);
  }
  /// Bits, so that NaN equals itself.
  static std::vector<uint16_t> bits(const DeviceArray<Bf16>& a) {
    std::vector<uint16_t> out;
    for (const Bf16 x : a.host()) out.push_back(x.bits);
    return out;
  }
  /// What Q8 makes of x, as values.
  std::vector<uint16_t> q8_values(const DeviceArray<Bf16>& x, int64_t rows, int64_t columns) {
    auto codes = reserve<uint8_t>(rows * columns);
    auto scales = reserve<uint8_t>(rows * columns / 32);
    auto values = reserve<Bf16>(rows * columns);
    QuantizeQ8Params p;
    p.x = x.data();
    p.x_stride = p.columns = columns;
    p.rows = rows;
    p.out = {codes.data(), scales.data(), values.data()};
    test::expect_ok(quantize_q8(ctx(), p));
    return bits(values);
  }
};
CEDAR_EACH_BACKEND(Fused);

TEST_P(Fused, TwoWeightsInOneLaunch) {
  constexpr int64_t kIn = 192;
  const PackedWeight first = weight(WeightFormat::fp8_block32, 320, kIn, 1);
  const PackedWeight second = weight(WeightFormat::fp8_block32, 96, kIn, 2);
  for (const int64_t rows : {1, 9, 40, 300}) {
    const auto x = upload(test::random_bf16(rows * kIn, 3));
    auto apart = reserve<Bf16>(rows * 320), apart_second = reserve<Bf16>(rows * 96);
    auto joined = reserve<Bf16>(rows * 320), joined_second = reserve<Bf16>(rows * 100, Bf16(7.0f));
    const auto q = quantize_q8(ctx(), x.data(), rows, kIn);
    ASSERT_TRUE(q.has_value());
    LinearParams p;
    p.xq = *q;
    p.rows = rows;
    p.weight = &second;
    p.y = apart_second.data();
    p.y_stride = 96;
    test::expect_ok(linear(ctx(), p));
    p.weight = &first;
    p.y = apart.data();
    p.y_stride = 320;
    test::expect_ok(linear(ctx(), p));
    p.y = joined.data();
    p.also = &second;
    p.also_y = joined_second.data();
    p.also_stride = 100;
    const Status status = linear(ctx(), p);
    if (!gpu()) {
      EXPECT_EQ(status.error().code, Errc::unsupported);
      return;
    }
    test::expect_ok(status);
    EXPECT_EQ(bits(joined), bits(apart)) << rows;
    const auto wide = bits(joined_second), dense = bits(apart_second);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < 100; ++c) {
        const uint16_t want = c < 96 ? dense[static_cast<size_t>(r * 96 + c)] : Bf16(7.0f).bits;
        ASSERT_EQ(wide[static_cast<size_t>(r * 100 + c)], want) << rows << " " << r << " " << c;
      }
    }
  }
}

TEST_P(Fused, OutputsAreQuantisedOnTheWay) {
  for (const int64_t out : {256, 96}) {
    constexpr int64_t kIn = 640;
    const PackedWeight w = weight(WeightFormat::bf16, out, kIn, 4);
    for (const int64_t rows : {1, 12, 70, 300}) {
      const auto x = upload(test::random_bf16(rows * kIn, 5));
      auto plain = reserve<Bf16>(rows * out), quantised = reserve<Bf16>(rows * out);
      LinearParams p;
      p.weight = &w;
      p.x = x.data();
      p.x_stride = kIn;
      p.y = plain.data();
      p.y_stride = out;
      p.rows = rows;
      test::expect_ok(linear(ctx(), p));
      p.y = quantised.data();
      p.quantised_y = true;
      const Status status = linear(ctx(), p);
      if (!gpu()) {
        EXPECT_EQ(status.error().code, Errc::unsupported);
        return;
      }
      test::expect_ok(status);
      EXPECT_EQ(bits(quantised), q8_values(plain, rows, out)) << out << " " << rows;
    }
  }
}

TEST_P(Fused, QueryAndWindowFromTheFirstProjections) {
  constexpr int64_t kRank = 192, kDim = 128, kRows = 5;
  const auto q = upload(test::random_bf16(kRows * kRank, 6)),
             k = upload(test::random_bf16(kRows * kDim, 7));
  const auto q_norm = upload(test::random_bf16(kRank, 8)),
             k_norm = upload(test::random_bf16(kDim, 9));
  const auto positions = upload(std::vector<int64_t>{0, 5, 77, 1000, 90001});
  const auto inv_freq = upload(test::random_f32(16, 10));
  const int64_t row_bytes = packed_row_bytes(RowFormat::q8, kDim);
  auto normed = reserve<Bf16>(kRows * kRank), scratch = reserve<Bf16>(kRows * kRank);
  auto apart = reserve<uint8_t>(kRows * row_bytes), joined = reserve<uint8_t>(kRows * row_bytes);
  auto codes = reserve<uint8_t>(kRows * kRank), scales = reserve<uint8_t>(kRows * kRank / 32);
  auto values = reserve<Bf16>(kRows * kRank);
  QueryWindowParams p;
  p.norm.x = q.data();
  p.norm.x_stride = p.norm.y_stride = p.norm.columns = kRank;
  p.norm.weight = q_norm.data();
  p.norm.y = normed.data();
  p.norm.rows = kRows;
  p.norm.eps = 1e-6f;
  test::expect_ok(rms_norm(ctx(), p.norm));
  p.window.x = k.data();
  p.window.x_stride = p.window.columns = kDim;
  p.window.norm_weight = k_norm.data();
  p.window.eps = 1e-6f;
  p.window.positions = positions.data();
  p.window.inv_freq = inv_freq.data();
  p.window.rows = kRows;
  p.window.rotary_dim = 32;
  p.window.dense = apart.data();
  test::expect_ok(kv_write(ctx(), p.window));
  p.norm.y = scratch.data();
  p.window.dense = joined.data();
  p.quantised = {codes.data(), scales.data(), gpu() ? values.data() : nullptr};
  test::expect_ok(query_window(ctx(), p));
  EXPECT_EQ(joined.host(), apart.host());
  if (gpu()) {
    EXPECT_EQ(bits(values), q8_values(normed, kRows, kRank));
  } else {
    EXPECT_EQ(bits(scratch), bits(normed));
  }
}

TEST_P(Fused, AttentionTurnsItsQueries) {
  if (!gpu()) return;
  for (const int64_t dim : {512, 96}) {
    const int64_t heads = dim == 512 ? 64 : 6;
    constexpr int64_t kRows = 3, kWindow = 128;
    const int64_t rotary = dim == 512 ? 64 : 32;
    const int64_t row_bytes = packed_row_bytes(RowFormat::q8, dim);
    auto q = upload(test::random_bf16(kRows * heads * dim, 11));
    auto turned = upload(q.host());
    const auto sink = upload(test::random_f32(heads, 12));
    const auto inv_freq = upload(test::random_f32(rotary / 2, 13));
    const auto positions = upload(std::vector<int64_t>{100, 4000, 250000});
    std::vector<uint8_t> rows;
    for (int64_t r = 0; r < kWindow; ++r) {
      std::vector<uint8_t> packed(static_cast<size_t>(row_bytes));
      quantize_row(RowFormat::q8, test::random_bf16(dim, static_cast<uint32_t>(r)).data(), dim,
                   packed.data());
      rows.insert(rows.end(), packed.begin(), packed.end());
    }
    auto ring = upload(rows);
    const auto chunk = upload(std::vector<uint8_t>(static_cast<size_t>(row_bytes * kRows), 0));
    WindowSpan span;
    span.ring_end = 90;
    const auto spans = upload(std::vector<WindowSpan>(3, span));
    auto apart = reserve<Bf16>(kRows * heads * dim), joined = reserve<Bf16>(kRows * heads * dim);
    RopeParams rotate;
    rotate.x = turned.data();
    rotate.row_stride = heads * dim;
    rotate.head_stride = rotate.head_dim = dim;
    rotate.positions = positions.data();
    rotate.inv_freq = inv_freq.data();
    rotate.rows = kRows;
    rotate.heads = heads;
    rotate.rotary_dim = rotary;
    test::expect_ok(rope(ctx(), rotate));
    SparseAttentionParams p;
    p.q = turned.data();
    p.sink = sink.data();
    p.scale = 0.05f;
    p.window = spans.data();
    p.rings = {ring.data(), row_bytes * kWindow, row_bytes, kWindow};
    p.chunk_rows = chunk.data();
    p.inv_freq = inv_freq.data();
    p.positions = positions.data();
    p.rotary_dim = rotary;
    p.o = apart.data();
    p.rows = kRows;
    p.heads = heads;
    p.head_dim = dim;
    test::expect_ok(sparse_attention(ctx(), p));
    p.q = q.data();
    p.rotate_q = true;
    p.o = joined.data();
    test::expect_ok(sparse_attention(ctx(), p));
    EXPECT_EQ(bits(joined), bits(apart)) << heads;
  }
}

/// The arrays of a hyper-connection's both ends.
struct Ends {
  int64_t rows, d;
  DeviceArray<Bf16> x, y, norm;
  DeviceArray<float> pre_in, post, mix, fn, base, scale;

  Ends(Device device, int64_t row_count, int64_t width)
      : rows(row_count),
        d(width),
        x(device, test::random_bf16(rows * 4 * d, 20)),
        y(device, test::random_bf16(rows * d, 21)),
        norm(device, test::random_bf16(d, 22)),
        pre_in(device, test::random_f32(rows * 4, 23)),
        post(device, test::random_f32(rows * 4, 24)),
        mix(device, test::random_f32(rows * 16, 25)),
        fn(device, test::random_f32(24 * 4 * d, 26)),
        base(device, test::random_f32(24, 27)),
        scale(device, test::random_f32(3, 28)) {}
};

TEST_P(Fused, ASublayersEndJoinsTheNextOnesBeginning) {
  for (const int64_t d : {512, 160}) {
    for (const int64_t rows : {1, 5, 33, 300}) {
      constexpr int64_t kTop = 3, kRowBytes = 528, kWindow = 8;
      Ends a(device(), rows, d), b(device(), rows, d);
      const auto out = upload(test::random_bf16(rows * (kTop + 1) * d, 30));
      std::vector<int32_t> slots;
      for (int64_t i = 0; i < rows * kTop; ++i) {
        slots.push_back(i % 7 == 3 ? -1 : static_cast<int32_t>((i * 5) % (rows * kTop)));
      }
      auto row_slots = upload(slots);
      SlotSum sum{const_cast<Bf16*>(out.data()), row_slots.data(), rows, kTop, true};
      const auto chunk = upload(test::random_bytes(rows * kRowBytes, 31));
      std::vector<int32_t> ring_slots;
      std::vector<int64_t> ring_positions;
      for (int64_t r = 0; r < rows; ++r) {
        ring_slots.push_back(r % 4 == 2 ? -1 : static_cast<int32_t>(r));
        ring_positions.push_back(r * 3);
      }
      const auto d_slots = upload(ring_slots);
      const auto d_positions = upload(ring_positions);
      auto ring_a = reserve<uint8_t>(rows * kWindow * kRowBytes, 9),
           ring_b = reserve<uint8_t>(rows * kWindow * kRowBytes, 9);

      const auto end_of = [&](Ends& e, DeviceArray<uint8_t>& ring, RingWriteParams& keep) {
        keep.rings = {ring.data(), kWindow * kRowBytes, kRowBytes, kWindow};
        keep.chunk_rows = chunk.data();
        keep.slots = d_slots.data();
        keep.positions = d_positions.data();
        keep.rows = rows;
        HcPostParams p;
        p.x = e.x.data();
        p.y = e.y.data();
        p.post = e.post.data();
        p.mix = e.mix.data();
        p.x_out = e.x.data();
        p.rows = rows;
        p.d = d;
        p.ring = &keep;
        if (gpu() && rows != 5) p.slots = &sum;
        return p;
      };
      struct Out {
        std::vector<uint16_t> x, u, values;
        std::vector<float> pre, post, mix;
        bool operator==(const Out&) const = default;
      };
      const auto begin_of = [&](Ends& e, const HcPostParams* after) {
        auto u = reserve<Bf16>(rows * d), values = reserve<Bf16>(rows * d);
        auto pre = reserve<float>(rows * 4), post = reserve<float>(rows * 4),
             mix = reserve<float>(rows * 16);
        HcPreParams p;
        p.x = e.x.data();
        p.pre_in = e.pre_in.data();
        p.weights = {e.fn.data(), e.base.data(), e.scale.data()};
        p.norm_weight = e.norm.data();
        p.norm_eps = p.hc_eps = 1e-6f;
        p.u = u.data();
        if (gpu()) p.u_values = values.data();
        p.pre = pre.data();
        p.post = post.data();
        p.mix = mix.data();
        p.rows = rows;
        p.d = d;
        p.after = after;
        test::expect_ok(hc_pre(ctx(), p));
        if (gpu()) {
          EXPECT_EQ(bits(values), q8_values(u, rows, d)) << d << " " << rows;
        }
        return Out{bits(e.x), bits(u), bits(values), pre.host(), post.host(), mix.host()};
      };
      RingWriteParams keep_a, keep_b;
      const HcPostParams apart = end_of(a, ring_a, keep_a);
      test::expect_ok(hc_post(ctx(), apart));
      const Out want = begin_of(a, nullptr);
      const HcPostParams joined = end_of(b, ring_b, keep_b);
      EXPECT_TRUE(begin_of(b, &joined) == want) << d << " " << rows;
      EXPECT_EQ(ring_a.host(), ring_b.host()) << d << " " << rows;
    }
  }
}

TEST_P(Fused, ExpertsRouteAndLeaveTheirSlots) {
  constexpr int64_t kD = 128, kInner = 96, kExperts = 20, kTop = 4;
  std::vector<ExpertWeights> experts;
  for (uint32_t e = 0; e < kExperts; ++e) {
    experts.push_back({weight(WeightFormat::fp8_block32, kInner, kD, 50 + 3 * e),
                       weight(WeightFormat::fp8_block32, kInner, kD, 51 + 3 * e),
                       weight(WeightFormat::fp8_block32, kD, kInner, 52 + 3 * e)});
  }
  const ExpertWeights shared{weight(WeightFormat::fp8_block32, kInner, kD, 40),
                             weight(WeightFormat::fp8_block32, kInner, kD, 41),
                             weight(WeightFormat::fp8_block32, kD, kInner, 42)};
  const PackedWeight gate_weight = weight(WeightFormat::bf16, kExperts, kD, 43);
  const auto bias = upload(test::random_f32(kExperts, 44));
  for (const int64_t rows : {1, 7, 64, 700}) {
    const auto x = upload(test::random_bf16(rows * kD, 45));
    auto chosen = reserve<int32_t>(rows * kTop), chosen_too = reserve<int32_t>(rows * kTop);
    auto weights = reserve<float>(rows * kTop), weights_too = reserve<float>(rows * kTop);
    auto y = reserve<Bf16>(rows * kD), out = reserve<Bf16>(rows * (kTop + 1) * kD);
    auto row_slots = reserve<int32_t>(rows * kTop);
    MoeGateParams gate;
    gate.x = x.data();
    gate.gate = &gate_weight;
    gate.bias = bias.data();
    gate.experts = chosen.data();
    gate.weights = weights.data();
    gate.rows = rows;
    gate.d = kD;
    gate.expert_count = kExperts;
    gate.top = kTop;
    test::expect_ok(moe_gate(ctx(), gate));
    const auto q = quantize_q8(ctx(), x.data(), rows, kD);
    ASSERT_TRUE(q.has_value());
    MoeExpertsParams p;
    p.xq = *q;
    p.experts = chosen.data();
    p.weights = weights.data();
    p.routed = experts;
    p.shared = &shared;
    p.clamp = 7;
    p.y = y.data();
    p.rows = rows;
    p.d = kD;
    p.top = kTop;
    test::expect_ok(moe_experts(ctx(), p));
    gate.experts = chosen_too.data();
    gate.weights = weights_too.data();
    SlotSum slots{out.data(), row_slots.data(), rows, kTop, true};
    p.experts = nullptr;
    p.weights = nullptr;
    p.route = &gate;
    p.slots = &slots;
    const Status status = moe_experts(ctx(), p);
    if (!gpu()) {
      EXPECT_EQ(status.error().code, Errc::unsupported);
      return;
    }
    test::expect_ok(status);
    EXPECT_EQ(chosen_too.host(), chosen.host()) << rows;
    EXPECT_EQ(weights_too.host(), weights.host()) << rows;
    // The sums, by the only operation that takes slots: post is 1, mix 0.
    const auto zeros = reserve<Bf16>(rows * 4 * kD), no_y = reserve<Bf16>(rows * kD);
    auto from_slots = reserve<Bf16>(rows * 4 * kD), from_y = reserve<Bf16>(rows * 4 * kD);
    const auto ones = reserve<float>(rows * 4, 1.0f), none = reserve<float>(rows * 16);
    HcPostParams post;
    post.x = zeros.data();
    post.post = ones.data();
    post.mix = none.data();
    post.rows = rows;
    post.d = kD;
    post.y = y.data();
    post.x_out = from_y.data();
    test::expect_ok(hc_post(ctx(), post));
    post.y = no_y.data();
    post.slots = &slots;
    post.x_out = from_slots.data();
    test::expect_ok(hc_post(ctx(), post));
    EXPECT_EQ(bits(from_slots), bits(from_y)) << rows;
  }
}

}  // namespace
}  // namespace cedar::kernels
