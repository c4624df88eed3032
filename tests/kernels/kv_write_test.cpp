#include "kernels/kv_write.h"

#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "tests/support/paged_store.h"

namespace cedar::kernels {
namespace {

struct Case {
  RowFormat format;
  int64_t columns, rotary;
  bool norm;
};

class KvWrite : public test::EachBackend {
 protected:
  /// The packed row that x becomes when every step runs on its own.
  static std::vector<uint8_t> expected(const Case& c, std::vector<Bf16> x,
                                       const std::vector<Bf16>& weight, int64_t position,
                                       const std::vector<float>& inv_freq) {
    test::BackendContext plain(test::all_backends().front());
    if (c.norm) {
      test::expect_ok(rms_norm(*plain, {.x = x.data(),
                                        .x_stride = c.columns,
                                        .weight = weight.data(),
                                        .y = x.data(),
                                        .y_stride = c.columns,
                                        .rows = 1,
                                        .columns = c.columns,
                                        .eps = 1e-20f}));
    }
    test::expect_ok(rope(*plain, {.x = x.data(),
                                  .row_stride = c.columns,
                                  .head_stride = c.columns,
                                  .positions = &position,
                                  .inv_freq = inv_freq.data(),
                                  .rows = 1,
                                  .heads = 1,
                                  .head_dim = c.columns,
                                  .rotary_dim = c.rotary}));
    std::vector<uint8_t> packed(static_cast<size_t>(packed_row_bytes(c.format, c.columns)));
    quantize_row(c.format, x.data(), c.columns, packed.data());
    return packed;
  }
};

TEST_P(KvWrite, NormalisesRotatesAndPacks) {
  for (const Case c : {Case{RowFormat::q8, 512, 64, true},
                       {RowFormat::q8, 96, 24, true},
                       {RowFormat::q4n, 512, 64, false},
                       {RowFormat::q4n, 96, 24, false},
                       {RowFormat::q4x, 128, 64, true},
                       {RowFormat::q4x, 32, 24, true}}) {
    constexpr int64_t kRows = 9;
    const int64_t stride = c.columns + 16;
    const auto host = test::random_bf16(kRows * stride, 11, 2.0f);
    const auto weight = test::random_bf16(c.columns, 12);
    const auto inv_freq = rope_inverse_frequencies(c.rotary, 10000, {});
    const std::vector<int64_t> positions = {0, 1, 2, 127, 128, 4095, 100000, 1 << 20, 7};
    auto x = upload(host);
    auto w = upload(weight);
    auto at = upload(positions);
    auto freq = upload(inv_freq);
    const int64_t bytes = packed_row_bytes(c.format, c.columns);
    auto dense = reserve<uint8_t>(kRows * bytes);
    KvWriteParams p;
    p.format = c.format;
    p.x = x.data();
    p.x_stride = stride;
    p.norm_weight = c.norm ? w.data() : nullptr;
    p.eps = 1e-20f;
    p.positions = at.data();
    p.inv_freq = freq.data();
    p.rows = kRows;
    p.columns = c.columns;
    p.rotary_dim = c.rotary;
    p.dense = dense.data();
    test::expect_ok(kv_write(ctx(), p));

    // The same rows into pages: row 3 is dropped, the others end up in two sequences, across page
    // boundaries.
    test::PagedStore store(device(), c.format, 2, 40, c.columns, 8, 13);
    const std::vector<int32_t> sequences = {0, 0, 1, 1, 1, 0, 0, 1, 1};
    const std::vector<int64_t> targets = {7, 8, 0, -1, 15, 16, 39, 31, 32};
    std::vector<std::vector<uint8_t>> before;
    for (int64_t j = 0; j < 40; ++j) before.push_back(store.packed_row(1, j));
    auto device_sequences = upload(sequences);
    auto device_targets = upload(targets);
    p.dense = nullptr;
    p.paged = store.rows();
    p.sequences = device_sequences.data();
    p.target_rows = device_targets.data();
    test::expect_ok(kv_write(ctx(), p));

    const auto rows = dense.host();
    for (int64_t r = 0; r < kRows; ++r) {
      const auto begin = host.begin() + r * stride;
      const auto want = expected(c, {begin, begin + c.columns}, weight,
                                 positions[static_cast<size_t>(r)], inv_freq);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), rows.begin() + r * bytes))
          << c.columns << " row " << r;
      if (targets[static_cast<size_t>(r)] < 0) continue;
      EXPECT_EQ(
          store.packed_row(sequences[static_cast<size_t>(r)], targets[static_cast<size_t>(r)]),
          want)
          << r;
    }
    for (const int64_t j : {1, 14, 16, 30, 33, 39}) {
      EXPECT_EQ(store.packed_row(1, j), before[static_cast<size_t>(j)]) << "untouched row " << j;
    }
  }
}

TEST_P(KvWrite, PacksEveryKindOfNumberAsTheDefinitionDoes) {
  // Ties, zeros of both signs, the floors' neighbourhood, huge values, infinity and NaN, each
  // scaled so that groups of all sizes of amax occur.
  constexpr int64_t kColumns = 96, kRows = 400;
  std::mt19937 engine(14);
  std::vector<Bf16> host;
  for (int64_t r = 0; r < kRows; ++r) {
    const float scale = std::ldexp(1.0f, static_cast<int>(r % 250) - 130);
    for (int64_t c = 0; c < kColumns; ++c) {
      const float quarter = 0.125f * static_cast<float>(static_cast<int>(engine() % 113) - 56);
      Bf16 x(quarter * scale);
      if (r % 4 == 1) x = Bf16::from_bits(static_cast<uint16_t>(engine()));
      if (r % 50 == 3 && c < 40) x = Bf16(-0.0f);
      host.push_back(x);
    }
  }
  auto x = upload(host);
  for (const RowFormat format : {RowFormat::q8, RowFormat::q4x, RowFormat::q4n}) {
    // 80 = two and a half blocks of 32.
    const int64_t columns = format == RowFormat::q4n ? 80 : kColumns;
    const int64_t bytes = packed_row_bytes(format, columns);
    auto packed = reserve<uint8_t>(kRows * bytes);
    KvWriteParams p;
    p.format = format;
    p.x = x.data();
    p.x_stride = kColumns;
    p.rows = kRows;
    p.columns = columns;
    p.dense = packed.data();
    test::expect_ok(kv_write(ctx(), p));
    const auto got = packed.host();
    for (int64_t r = 0; r < kRows; ++r) {
      std::vector<uint8_t> want(static_cast<size_t>(bytes));
      quantize_row(format, host.data() + r * kColumns, columns, want.data());
      ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin() + r * bytes))
          << static_cast<int>(format) << " " << r;
    }
  }
}

TEST_P(KvWrite, RingsKeepTheRowOfEachPosition) {
  constexpr int64_t kWindow = 36, kBytes = 99, kSlots = 3;
  const int64_t stride = kWindow * kBytes + 13;
  auto ring = reserve<uint8_t>(kSlots * stride, uint8_t{0xee});
  // Slot 2 gets positions 30..65 (wrapping), slot 0 one row; one row is dropped.
  std::vector<int32_t> slots(36, 2);
  std::vector<int64_t> positions(36);
  for (int64_t i = 0; i < 36; ++i) positions[static_cast<size_t>(i)] = 30 + i;
  slots.insert(slots.end(), {0, -1});
  positions.insert(positions.end(), {71, 5});
  const auto chunk = test::random_bytes(38 * kBytes, 21);
  auto device_chunk = upload(chunk);
  auto device_slots = upload(slots);
  auto device_positions = upload(positions);
  RingWriteParams p;
  p.rings = {
      .base = ring.data(), .slot_stride_bytes = stride, .row_bytes = kBytes, .window = kWindow};
  p.chunk_rows = device_chunk.data();
  p.slots = device_slots.data();
  p.positions = device_positions.data();
  p.rows = 38;
  test::expect_ok(ring_write(ctx(), p));

  std::vector<uint8_t> want(static_cast<size_t>(kSlots * stride), 0xee);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) continue;
    std::copy_n(chunk.begin() + static_cast<int64_t>(i) * kBytes, kBytes,
                want.begin() + slots[i] * stride + positions[i] % kWindow * kBytes);
  }
  EXPECT_EQ(ring.host(), want);
}

TEST_P(KvWrite, RefusesWrongShapes) {
  Bf16 x;
  KvWriteParams p;
  p.x = &x;
  p.rows = 1;
  p.columns = 40;
  p.x_stride = 40;
  test::expect_invalid(kv_write(ctx(), p), "columns", "40");
  p.columns = 64;
  p.x_stride = 64;
  p.rotary_dim = 66;
  test::expect_invalid(kv_write(ctx(), p), "rotary_dim", "66");
  p.rotary_dim = 0;
  test::expect_invalid(kv_write(ctx(), p), "paged.base", "null");
}

CEDAR_EACH_BACKEND(KvWrite);

}  // namespace
}  // namespace cedar::kernels
