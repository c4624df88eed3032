#include "kernels/index_score.h"

#include <limits>

#include "kernels/rope.h"
#include "tests/reference/attention_reference.h"
#include "tests/support/paged_store.h"

namespace cedar::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Problem {
  int64_t heads = 32, columns = 128;
  std::vector<int32_t> sequences;
  std::vector<int64_t> visible;
  int64_t keys_each = 0;
  int64_t rows_per_page = 64;
  std::vector<std::vector<bool>> pools = {};  // per row, or empty
};

class IndexScore : public test::EachBackend {
 protected:
  struct Outcome {
    std::vector<float> scores;
    std::vector<double> want;
  };

  Outcome run(const Problem& problem, IndexScoreMode mode, int64_t stride) {
    const auto rows = static_cast<int64_t>(problem.sequences.size());
    test::PagedStore keys(device(), RowFormat::q4x, 2, problem.keys_each, problem.columns,
                          problem.rows_per_page, 31);
    const int64_t bytes = packed_row_bytes(RowFormat::q4x, problem.columns);
    const auto q_values = test::random_bf16(rows * problem.heads * problem.columns, 32);
    std::vector<uint8_t> q(static_cast<size_t>(rows * problem.heads * bytes));
    for (int64_t i = 0; i < rows * problem.heads; ++i) {
      quantize_row(RowFormat::q4x, q_values.data() + i * problem.columns, problem.columns,
                   q.data() + i * bytes);
    }
    const auto weights = test::random_bf16(rows * problem.heads, 33);
    auto d_q = upload(q);
    auto d_weights = upload(weights);
    auto d_sequences = upload(problem.sequences);
    auto d_visible = upload(problem.visible);
    auto scores = reserve<float>(rows * stride, 123.0f);
    const int64_t words = (stride + 31) / 32;
    std::vector<uint32_t> mask(static_cast<size_t>(rows * words), 0);
    const auto allowed = [&](int64_t r, int64_t j) {
      return problem.pools.empty() || problem.pools[static_cast<size_t>(r)][static_cast<size_t>(j)];
    };
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < stride; ++j) {
        if (allowed(r, j)) mask[static_cast<size_t>(r * words + j / 32)] |= 1u << (j % 32);
      }
    }
    auto d_mask = upload(mask);
    IndexScoreParams p;
    p.mask = problem.pools.empty() ? nullptr : d_mask.data();
    p.mask_stride = words;
    p.q = d_q.data();
    p.head_weights = d_weights.data();
    p.head_weight_scale = 1.0f / 64;
    p.keys = keys.rows();
    p.sequences = d_sequences.data();
    p.visible = d_visible.data();
    p.scores = scores.data();
    p.score_stride = stride;
    p.rows = rows;
    p.heads = problem.heads;
    p.columns = problem.columns;
    p.mode = mode;
    test::expect_ok(index_score(ctx(), p));
    // The hint changes nothing.
    auto hinted = reserve<float>(rows * stride, 321.0f);
    p.scores = hinted.data();
    p.rows_per_sequence = 3;
    test::expect_ok(index_score(ctx(), p));
    EXPECT_EQ(scores.host(), hinted.host());

    Outcome out{scores.host(), {}};
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<test::Row> heads;
      test::Row w;
      for (int64_t h = 0; h < problem.heads; ++h) {
        std::vector<Bf16> x(static_cast<size_t>(problem.columns));
        dequantize_row(RowFormat::q4x, q.data() + (r * problem.heads + h) * bytes, problem.columns,
                       x.data());
        heads.push_back(test::widened(x));
        w.push_back(test::as_double(weights[static_cast<size_t>(r * problem.heads + h)]) / 64);
      }
      for (int64_t j = 0; j < stride; ++j) {
        out.want.push_back(j < problem.visible[static_cast<size_t>(r)] && allowed(r, j)
                               ? test::index_score_reference(
                                     heads, w,
                                     keys.row(problem.sequences[static_cast<size_t>(r)], j),
                                     mode == IndexScoreMode::bf16)
                               : static_cast<double>(kMinusInfinity));
      }
    }
    return out;
  }

  void expect_close(const Outcome& out, double bound) {
    ASSERT_EQ(out.scores.size(), out.want.size());
    double largest = 0;
    for (const double x : out.want) {
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    }
    for (size_t i = 0; i < out.want.size(); ++i) {
      if (std::isfinite(out.want[i])) {
        ASSERT_NEAR(static_cast<double>(out.scores[i]), out.want[i], bound * largest) << i;
      } else {
        ASSERT_EQ(out.scores[i], kMinusInfinity) << i;
      }
    }
  }
};

const Problem kRelease{32, 128, {0, 0, 0, 1, 1, 0}, {150, 151, 0, 64, 7, 149}, 160, 64};
// Pages of 5 rows; 3 heads of 32 channels; visible counts around a tile's and a page's end.
const Problem kOdd{3, 32, {1, 1, 1, 1, 1, 1}, {1, 5, 63, 64, 65, 129}, 130, 5};

TEST_P(IndexScore, Fp32FollowsTheFormula) {
  expect_close(run(kRelease, IndexScoreMode::fp32, 170), 1e-6);
  expect_close(run(kOdd, IndexScoreMode::fp32, 129), 1e-6);
  expect_close(run({2, 32, {0, 0}, {33, 34}, 40, 16}, IndexScoreMode::fp32, 40), 1e-6);
  expect_close(run({64, 512, {0}, {20}, 20, 16}, IndexScoreMode::fp32, 20), 1e-6);
}

TEST_P(IndexScore, Bf16RoundsWhereTheReferenceRounds) {
  for (const Problem& problem : {kRelease, kOdd}) {
    const Outcome out = run(problem, IndexScoreMode::bf16, 170);
    int different = 0, finite = 0;
    for (size_t i = 0; i < out.want.size(); ++i) {
      const Bf16 got(out.scores[i]), want(static_cast<float>(out.want[i]));
      ASSERT_EQ(float_bits(static_cast<float>(got)), float_bits(out.scores[i])) << "not a bf16";
      ASSERT_LE(test::bf16_steps(got, want), 1) << i;
      finite += std::isfinite(out.want[i]) ? 1 : 0;
      different += got == want ? 0 : 1;
    }
    // The head sum alone is inexact: it may fall on the other side of a rounding boundary now and
    // then.
    EXPECT_LE(different, finite / 50);
  }
}

TEST_P(IndexScore, ARowDoesNotDependOnItsNeighbours) {
  for (const IndexScoreMode mode : {IndexScoreMode::fp32, IndexScoreMode::bf16}) {
    // The second run scores the same first row alone.
    const Outcome together = run(kRelease, mode, 170);
    const Outcome alone = run({32, 128, {0}, {150}, 160, 64}, mode, 170);
    for (size_t i = 0; i < 170; ++i)
      ASSERT_EQ(float_bits(together.scores[i]), float_bits(alone.scores[i])) << i;
  }
}

TEST_P(IndexScore, APoolHidesTheOtherKeysAndChangesNoScore) {
  // Rows of one sequence: a sparse pool, one that holds every key, an empty one, one that holds
  // none but invisible keys.
  Problem problem{32, 128, {0, 0, 0, 0, 1}, {150, 151, 149, 40, 150}, 160, 64};
  problem.pools.assign(5, std::vector<bool>(170, false));
  for (size_t j = 0; j < 170; ++j) {
    problem.pools[0][j] = j / 8 % 3 == 1;
    problem.pools[1][j] = true;
    problem.pools[3][j] = j >= 40;
    problem.pools[4][j] = j != 149;
  }
  for (const IndexScoreMode mode : {IndexScoreMode::fp32, IndexScoreMode::bf16}) {
    const Outcome pooled = run(problem, mode, 170);
    if (mode == IndexScoreMode::fp32) expect_close(pooled, 1e-6);
    Problem open = problem;
    open.pools.clear();
    const Outcome all = run(open, mode, 170);
    for (size_t i = 0; i < all.scores.size(); ++i) {
      if (pooled.want[i] == static_cast<double>(kMinusInfinity)) {
        ASSERT_EQ(pooled.scores[i], kMinusInfinity) << i;
      } else {
        ASSERT_EQ(float_bits(pooled.scores[i]), float_bits(all.scores[i])) << i;
      }
    }
  }
}

/// Scores of rows that see thousands of keys, on any back end; `offset` decides how keys are aligned.
std::vector<float> long_rows(const test::Backend& backend, int64_t offset, IndexScoreMode mode,
                             bool with_pool) {
  constexpr int64_t kRows = 6, kKeys = 5000, kHeads = 32, kColumns = 128;
  const Device device = backend.device;
  test::BackendContext context(backend);
  test::PagedStore keys(device, RowFormat::q4x, 2, kKeys, kColumns, 64, 34, offset);
  const int64_t bytes = packed_row_bytes(RowFormat::q4x, kColumns);
  const auto q_values = test::random_bf16(kRows * kHeads * kColumns, 35);
  std::vector<uint8_t> q(static_cast<size_t>(kRows * kHeads * bytes));
  for (int64_t i = 0; i < kRows * kHeads; ++i) {
    quantize_row(RowFormat::q4x, q_values.data() + i * kColumns, kColumns, q.data() + i * bytes);
  }
  // Row 3 is alone in its sequence, row 4 sees nothing, row 5 ends inside a tile.
  const std::vector<int32_t> sequences = {0, 0, 0, 1, 0, 0};
  const std::vector<int64_t> visible = {4990, 4991, 1024, 5000, 0, 2085};
  constexpr int64_t kStride = 5008, kWords = (kStride + 31) / 32;
  std::vector<uint32_t> mask;
  for (int64_t i = 0; i < kRows * kWords; ++i) {
    // Whole blocks of eight, some words empty, some full.
    mask.push_back(i % 7 == 3 ? 0xffffffffu : i % 5 == 0 ? 0x00ff0000u : i % 3 == 0 ? 0xffu : 0u);
  }
  test::DeviceArray<uint8_t> d_q(device, q);
  test::DeviceArray<Bf16> d_weights(device, test::random_bf16(kRows * kHeads, 36));
  test::DeviceArray<int32_t> d_sequences(device, sequences);
  test::DeviceArray<int64_t> d_visible(device, visible);
  test::DeviceArray<uint32_t> d_mask(device, mask);
  test::DeviceArray<float> scores(device, kRows * kStride, 55.0f);
  IndexScoreParams p;
  p.q = d_q.data();
  p.head_weights = d_weights.data();
  p.head_weight_scale = 1.0f / 64;
  p.keys = keys.rows();
  p.sequences = d_sequences.data();
  p.rows_per_sequence = 2;
  p.visible = d_visible.data();
  p.mask = with_pool ? d_mask.data() : nullptr;
  p.mask_stride = kWords;
  p.scores = scores.data();
  p.score_stride = kStride;
  p.rows = kRows;
  p.heads = kHeads;
  p.columns = kColumns;
  p.mode = mode;
  test::expect_ok(index_score(*context, p));
  return scores.host();
}

TEST_P(IndexScore, LongRowsEqualTheFirstBackEnds) {
  for (const int64_t offset : {20, 32}) {
    for (const bool with_pool : {false, true}) {
      const auto got = long_rows(GetParam(), offset, IndexScoreMode::fp32, with_pool);
      const auto want =
          long_rows(test::all_backends().front(), offset, IndexScoreMode::fp32, with_pool);
      float largest = 0;
      for (const float x : want)
        largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
      for (size_t i = 0; i < want.size(); ++i) {
        if (std::isfinite(want[i])) {
          ASSERT_NEAR(got[i], want[i], 1e-6f * largest) << i;
        } else {
          ASSERT_EQ(got[i], kMinusInfinity) << i;
        }
      }
    }
  }
}

TEST_P(IndexScore, QueriesAreRotatedAndPackedPerHead) {
  for (const auto& [heads, columns, rotary] :
       {std::tuple<int64_t, int64_t, int64_t>{32, 128, 64}, {2, 32, 24}}) {
    const std::vector<int64_t> positions = {0, 5, 123456};
    const auto inv_freq = rope_inverse_frequencies(rotary, 160000, {16, 32, 1, 65536});
    auto values = test::random_bf16(3 * heads * columns, 41);
    auto d_q = upload(values);
    auto d_positions = upload(positions);
    auto d_freq = upload(inv_freq);
    const int64_t bytes = packed_row_bytes(RowFormat::q4x, columns);
    auto packed = reserve<uint8_t>(3 * heads * bytes);
    IndexQueryParams p;
    p.q = d_q.data();
    p.positions = d_positions.data();
    p.inv_freq = d_freq.data();
    p.packed = packed.data();
    p.rows = 3;
    p.heads = heads;
    p.columns = columns;
    p.rotary_dim = rotary;
    test::expect_ok(index_query(ctx(), p));

    test::BackendContext plain(test::all_backends().front());
    test::expect_ok(rope(*plain, {.x = values.data(),
                                  .row_stride = heads * columns,
                                  .head_stride = columns,
                                  .positions = positions.data(),
                                  .inv_freq = inv_freq.data(),
                                  .rows = 3,
                                  .heads = heads,
                                  .head_dim = columns,
                                  .rotary_dim = rotary}));
    std::vector<uint8_t> want(static_cast<size_t>(3 * heads * bytes));
    for (int64_t i = 0; i < 3 * heads; ++i) {
      quantize_row(RowFormat::q4x, values.data() + i * columns, columns, want.data() + i * bytes);
    }
    EXPECT_EQ(packed.host(), want);
  }
}

TEST_P(IndexScore, RefusesAStrideBelowTheVisibleKeys) {
  if (test::on_cuda(GetParam())) GTEST_SKIP() << "the counts lie where the check cannot read them";
  uint8_t byte = 0;
  Bf16 weight;
  float score = 0;
  const int32_t sequence = 0;
  const int64_t visible = 9;
  IndexScoreParams p;
  p.q = &byte;
  p.head_weights = &weight;
  p.sequences = &sequence;
  p.visible = &visible;
  p.scores = &score;
  p.score_stride = 8;
  p.rows = 1;
  p.heads = 1;
  p.columns = 32;
  test::expect_invalid(index_score(ctx(), p), "score_stride", "8");
}

CEDAR_EACH_BACKEND(IndexScore);

}  // namespace
}  // namespace cedar::kernels
