#include "kernels/compress.h"

#include "tests/reference/attention_reference.h"
#include "tests/support/backends.h"

namespace cedar::kernels {
namespace {

class Compress : public test::EachBackend {};

TEST_P(Compress, PoolsChunkRowsAndPendingRows) {
  struct Shape {
    int64_t ratio, columns;
  };
  for (const Shape shape : {Shape{2, 512}, {2, 96}, {1, 32}, {3, 40}}) {
    const int64_t ratio = shape.ratio, columns = shape.columns;
    constexpr int64_t kChunk = 7, kSlots = 2;
    const auto kv = test::random_f32(kChunk * columns, 1),
               gate = test::random_f32(kChunk * columns, 2, 3.0f);
    const int64_t kept = kSlots * std::max<int64_t>(ratio - 1, 1);
    const auto pending_kv = test::random_f32(kept * columns, 3);
    const auto pending_gate = test::random_f32(kept * columns, 4, 3.0f);
    const auto weight = test::random_bf16(columns, 5);
    // Group 0 begins with the last pending row of slot 1, group 1 lies inside the chunk.
    std::vector<int32_t> members, pending_rows;
    for (int64_t m = 0; m < ratio; ++m) {
      const bool is_pending = m == 0 && ratio > 1;
      members.push_back(is_pending ? -2 : static_cast<int32_t>(m));
      pending_rows.push_back(is_pending ? static_cast<int32_t>(ratio - 2) : 0);
    }
    for (int64_t m = 0; m < ratio; ++m) {
      members.push_back(static_cast<int32_t>(ratio + m));
      pending_rows.push_back(0);
    }
    auto d_kv = upload(kv), d_gate = upload(gate), d_pkv = upload(pending_kv),
         d_pgate = upload(pending_gate);
    auto d_members = upload(members), d_rows = upload(pending_rows);
    auto d_weight = upload(weight);
    auto latent = reserve<Bf16>(2 * columns);
    CompressParams p;
    p.kv = d_kv.data();
    p.gate = d_gate.data();
    p.members = d_members.data();
    p.pending_kv = d_pkv.data();
    p.pending_gate = d_pgate.data();
    p.pending_rows = d_rows.data();
    p.norm_weight = d_weight.data();
    p.eps = 1e-20f;
    p.latent = latent.data();
    p.groups = 2;
    p.ratio = ratio;
    p.columns = columns;
    test::expect_ok(compress(ctx(), p));

    std::vector<double> want;
    for (size_t g = 0; g < 2; ++g) {
      test::Row pooled;
      for (int64_t c = 0; c < columns; ++c) {
        double sum = 0, total = 0;
        for (size_t m = 0; m < static_cast<size_t>(ratio); ++m) {
          const size_t at = g * static_cast<size_t>(ratio) + m;
          const bool chunk = members[at] >= 0;
          const int64_t row =
              chunk ? members[at] : (-1 - members[at]) * (ratio - 1) + pending_rows[at];
          const auto i = static_cast<size_t>(row * columns + c);
          const double e = std::exp(static_cast<double>(chunk ? gate[i] : pending_gate[i]));
          total += e;
          sum += e * static_cast<double>(chunk ? kv[i] : pending_kv[i]);
        }
        pooled.push_back(test::round_bf16(sum / total));
      }
      const auto normed = test::rms_norm_reference(pooled, test::widened(weight), 1e-20);
      want.insert(want.end(), normed.begin(), normed.end());
    }
    EXPECT_LT(
        test::relative_l2(std::span<const Bf16>(latent.host()), std::span<const double>(want)),
        3e-3)
        << ratio << " " << columns;
  }
}

TEST_P(Compress, SurvivesGatesFarApart) {
  const std::vector<float> kv = {1, 1, 3, 3}, gate = {300, -300, -300, 300};
  auto d_kv = upload(kv), d_gate = upload(gate);
  auto d_members = upload(std::vector<int32_t>{0, 1}), d_rows = upload(std::vector<int32_t>{0, 0});
  auto weight = upload(std::vector<Bf16>{Bf16(1.0f), Bf16(1.0f)});
  auto latent = reserve<Bf16>(2);
  CompressParams p;
  p.kv = d_kv.data();
  p.gate = d_gate.data();
  p.members = d_members.data();
  p.pending_rows = d_rows.data();
  p.norm_weight = weight.data();
  p.latent = latent.data();
  p.groups = 1;
  p.columns = 2;
  test::expect_ok(compress(ctx(), p));
  // Channel 0 is token 0 alone (1), channel 1 token 1 alone (3); the norm divides both by sqrt(5).
  EXPECT_NEAR(static_cast<float>(latent.host()[0]), 0.4472f, 2e-3f);
  EXPECT_NEAR(static_cast<float>(latent.host()[1]), 1.3416f, 5e-3f);
}

CEDAR_EACH_BACKEND(Compress);

}  // namespace
}  // namespace cedar::kernels
