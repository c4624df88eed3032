#include "kernels/topk.h"

#include <limits>

#include "tests/reference/attention_reference.h"
#include "tests/support/backends.h"
#include "tests/support/safetensors_lite.h"

namespace cedar::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

std::vector<uint32_t> mask_words(const std::vector<bool>& allowed) {
  std::vector<uint32_t> words((allowed.size() + 31) / 32, 0);
  for (size_t c = 0; c < allowed.size(); ++c) {
    if (allowed[c]) words[c / 32] |= 1u << (c % 32);
  }
  return words;
}

class Topk : public test::EachBackend {
 protected:
  std::vector<int32_t> run(const std::vector<float>& scores, int64_t rows, int64_t k,
                           const std::vector<bool>& allowed = {}) {
    const int64_t columns = static_cast<int64_t>(scores.size()) / rows;
    auto d_scores = upload(scores);
    const auto words = mask_words(allowed);
    auto d_mask = upload(words);
    auto indices = reserve<int32_t>(rows * k, 77);
    TopkParams p;
    p.scores = d_scores.data();
    p.score_stride = columns;
    p.columns = columns;
    p.mask = allowed.empty() ? nullptr : d_mask.data();
    p.mask_stride = static_cast<int64_t>(words.size());
    p.indices = indices.data();
    p.rows = rows;
    p.k = k;
    test::expect_ok(topk(ctx(), p));
    return indices.host();
  }

  std::vector<bool> pool(const std::vector<float>& scores, int64_t visible, int64_t block,
                         int64_t keep) {
    const auto columns = static_cast<int64_t>(scores.size());
    const int64_t words = (columns + 31) / 32 + 1;
    auto d_scores = upload(scores);
    auto d_visible = upload(std::vector<int64_t>{visible});
    auto mask = reserve<uint32_t>(words, 0xffffffffu);
    CandidateBlocksParams p;
    p.scores = d_scores.data();
    p.score_stride = columns;
    p.visible = d_visible.data();
    p.mask = mask.data();
    p.mask_stride = words;
    p.columns = columns;
    p.rows = 1;
    p.block = block;
    p.keep = keep;
    test::expect_ok(candidate_blocks(ctx(), p));
    const auto bits = mask.host();
    std::vector<bool> out;
    for (int64_t c = 0; c < columns; ++c)
      out.push_back((bits[static_cast<size_t>(c / 32)] >> (c % 32) & 1) != 0);
    return out;
  }
};

TEST_P(Topk, ChoosesTheBest) {
  // Rows longer than the scan's buffer, ends that are no multiple of 32, more columns than segments
  // need.
  for (const int64_t columns : {1, 31, 32, 33, 512, 513, 4000, 20001, 100003}) {
    for (const int64_t k : {1, 30, 512}) {
      const auto scores = test::random_f32(columns, static_cast<uint32_t>(columns + k));
      ASSERT_EQ(run(scores, 1, k), test::topk_reference(scores, k)) << columns << " " << k;
    }
  }
}

TEST_P(Topk, TiesGoToTheLowerColumn) {
  for (const int64_t columns : {50, 5000, 70000}) {
    // bf16-like scores: a handful of distinct values.
    auto scores = test::random_f32(columns, 3);
    for (float& s : scores) s = std::round(s * 2) / 2;
    for (const int64_t k : {1, 7, 512}) {
      ASSERT_EQ(run(scores, 1, k), test::topk_reference(scores, k)) << columns << " " << k;
    }
    const std::vector<float> same(static_cast<size_t>(columns), -3.0f);
    ASSERT_EQ(run(same, 1, 9), test::topk_reference(same, 9));
  }
  // -0 and 0 are one score.
  EXPECT_EQ(run({-0.0f, 0.0f, -0.0f, 0.0f}, 1, 2), (std::vector<int32_t>{0, 1}));
}

TEST_P(Topk, SortedInputsAreNoWorstCase) {
  std::vector<float> rising(50000);
  for (size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<float>(i);
  ASSERT_EQ(run(rising, 1, 512), test::topk_reference(rising, 512));
  std::reverse(rising.begin(), rising.end());
  ASSERT_EQ(run(rising, 1, 512), test::topk_reference(rising, 512));
}

TEST_P(Topk, NeverChoosesMinusInfinity) {
  EXPECT_EQ(run({kMinusInfinity, 1, kMinusInfinity, -5e30f}, 1, 4),
            (std::vector<int32_t>{1, 3, -1, -1}));
  EXPECT_EQ(run(std::vector<float>(100, kMinusInfinity), 1, 3), (std::vector<int32_t>{-1, -1, -1}));
  EXPECT_EQ(run({}, 1, 2), (std::vector<int32_t>{-1, -1}));
  auto scores = test::random_f32(3000, 4);
  for (size_t i = 40; i < scores.size(); ++i) scores[i] = kMinusInfinity;
  EXPECT_EQ(run(scores, 1, 512), test::topk_reference(scores, 512));
}

TEST_P(Topk, ObeysTheMask) {
  for (const int64_t columns : {40, 6000, 80000}) {
    const auto scores = test::random_f32(columns, 5);
    std::vector<bool> allowed;
    for (int64_t c = 0; c < columns; ++c) allowed.push_back(c / 8 % 5 == 1 || c == columns - 1);
    ASSERT_EQ(run(scores, 1, 30, allowed), test::topk_reference(scores, 30, allowed)) << columns;
    const std::vector<bool> none(static_cast<size_t>(columns), false);
    ASSERT_EQ(run(scores, 1, 2, none), (std::vector<int32_t>{-1, -1}));
  }
}

TEST_P(Topk, RowsAreIndependentAndThreadsDoNotMatter) {
  const auto scores = test::random_f32(5 * 40000, 6);
  const auto together = run(scores, 5, 100);
  for (int64_t r = 0; r < 5; ++r) {
    const std::vector<float> row(scores.begin() + r * 40000, scores.begin() + (r + 1) * 40000);
    const auto alone = run(row, 1, 100);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + r * 100)) << r;
  }
}

TEST_P(Topk, CandidatesFollowTheSpecification) {
  for (const int64_t columns : {1, 7, 50, 100, 3000}) {
    for (const int64_t block : {1, 6, 8, 50}) {
      for (const int64_t visible : {int64_t{0}, int64_t{1}, columns / 2, columns}) {
        auto scores = test::random_f32(columns, static_cast<uint32_t>(columns + block));
        for (float& s : scores) s = std::round(s);
        for (int64_t c = visible; c < columns; ++c) scores[static_cast<size_t>(c)] = kMinusInfinity;
        for (const int64_t keep : {1, 4, 2048}) {
          ASSERT_EQ(pool(scores, visible, block, keep),
                    test::candidates_reference(scores, visible, block, keep))
              << columns << " " << block << " " << visible << " " << keep;
        }
      }
    }
  }
}

TEST_P(Topk, CandidatesEqualTheReferenceProgram) {
  const auto units = test::SafetensorsLite::open(std::string(CEDAR_SOURCE_DIR) +
                                                 "/tests/golden/units.safetensors");
  const auto logits = units.at("candidates.logits").as<float>();
  const auto lens = units.at("candidates.lens").as<int32_t>();
  const auto keep = units.at("candidates.keep_4x8").as<uint8_t>();
  const size_t columns = logits.size() / lens.size();
  for (size_t r = 0; r < lens.size(); ++r) {
    const std::vector<float> row(logits.begin() + static_cast<int64_t>(r * columns),
                                 logits.begin() + static_cast<int64_t>((r + 1) * columns));
    const auto got = pool(row, lens[r], 8, 4);
    for (size_t c = 0; c < columns; ++c)
      EXPECT_EQ(got[c], keep[r * columns + c] != 0) << r << " " << c;
  }
}

TEST_P(Topk, RefusesWrongShapes) {
  float score = 0;
  int32_t index = 0;
  TopkParams p;
  p.scores = &score;
  p.score_stride = 4;
  p.columns = 5;
  p.indices = &index;
  p.rows = p.k = 1;
  test::expect_invalid(topk(ctx(), p), "score_stride", "4");
  p.score_stride = 5;
  p.k = -1;
  test::expect_invalid(topk(ctx(), p), "k", "-1");
}

CEDAR_EACH_BACKEND(Topk);

}  // namespace
}  // namespace cedar::kernels
