#include "kernels/embed.h"

#include "tests/support/backends.h"

namespace cedar::kernels {
namespace {

class Embed : public test::EachBackend {};

TEST_P(Embed, CopiesTokenRowsAndImageRows) {
  constexpr int64_t kD = 21, kCopies = 4;
  const auto table = test::random_bf16(10 * kD, 81), images = test::random_bf16(3 * kD, 82);
  const std::vector<int32_t> ids = {9, 0, 3, 3, 1}, override_index = {-1, 2, -1, 0, -1};
  auto d_table = upload(table), d_images = upload(images), x = reserve<Bf16>(5 * kCopies * kD);
  auto d_ids = upload(ids), d_override = upload(override_index);
  EmbedParams p;
  p.table = d_table.data();
  p.ids = d_ids.data();
  p.x = x.data();
  p.rows = 5;
  p.copies = kCopies;
  p.d = kD;
  for (const bool with_images : {false, true}) {
    p.override_index = with_images ? d_override.data() : nullptr;
    p.override_rows = with_images ? d_images.data() : nullptr;
    test::expect_ok(embed(ctx(), p));
    const auto got = x.host();
    for (size_t r = 0; r < 5; ++r) {
      const bool image = with_images && override_index[r] >= 0;
      const Bf16* want =
          image ? images.data() + override_index[r] * kD : table.data() + ids[r] * kD;
      for (size_t j = 0; j < kCopies; ++j) {
        EXPECT_TRUE(
            std::equal(want, want + kD, got.begin() + static_cast<int64_t>((r * kCopies + j) * kD)))
            << r;
      }
    }
  }
}

TEST_P(Embed, GatherAndScatterMoveRows) {
  constexpr int64_t kBytes = 11;
  const auto source = test::random_bytes(6 * kBytes, 83);
  const std::vector<int32_t> index = {5, -1, 0, 2};
  auto d_source = upload(source);
  auto d_rows = upload(index);
  auto gathered = reserve<uint8_t>(4 * kBytes, uint8_t{1});
  GatherRowsParams p{d_source.data(), d_rows.data(), gathered.data(), 4, kBytes};
  test::expect_ok(gather_rows(ctx(), p));
  std::vector<uint8_t> want(4 * kBytes, 1);
  for (int64_t i : {0, 2, 3}) {
    std::copy_n(source.begin() + index[static_cast<size_t>(i)] * kBytes, kBytes,
                want.begin() + i * kBytes);
  }
  EXPECT_EQ(gathered.host(), want);

  auto scattered = reserve<uint8_t>(6 * kBytes, uint8_t{2});
  test::expect_ok(
      scatter_rows(ctx(), {gathered.data(), d_rows.data(), scattered.data(), 4, kBytes}));
  std::vector<uint8_t> spread(6 * kBytes, 2);
  for (int64_t i : {0, 2, 3}) {
    std::copy_n(want.begin() + i * kBytes, kBytes,
                spread.begin() + index[static_cast<size_t>(i)] * kBytes);
  }
  EXPECT_EQ(scattered.host(), spread);
}

TEST_P(Embed, RefusesWrongShapes) {
  Bf16 x;
  int32_t id = 0;
  EmbedParams p{&x, &id, &id, nullptr, &x, 1, 4, 1};
  test::expect_invalid(embed(ctx(), p), "override_rows", "null");
  test::expect_invalid(gather_rows(ctx(), {&x, &id, &x, 1, 0}), "row_bytes", "0");
}

CEDAR_EACH_BACKEND(Embed);

}  // namespace
}  // namespace cedar::kernels
