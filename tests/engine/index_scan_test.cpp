// Scans of some blocks, united, against one scan of all: the same lists and the same candidate pool, whatever the cut.

#include "engine/index_scan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "core/units.h"
#include "engine/index_key_store.h"
#include "kernels/topk.h"
#include "tests/support/backends.h"

namespace cedar::engine {
namespace {

using kernels::IndexScoreMode;
using Clock = IndexKeyStore::TimePoint::clock;

/// One sequence's keys, block by block, and questions about them. Few distinct keys, so that ties abound.
struct Case {
  int64_t keys = 0, rows_per_block = 8, rows = 5, k = 7, block = 4, keep = 3;
  int64_t distinct = 6;
  uint32_t seed = 1;
  IndexScoreMode mode = IndexScoreMode::bf16;

  static constexpr int64_t kHeads = 2, kColumns = 32;
  static constexpr int64_t kRowBytes = kColumns / 2 + kColumns / 32;

  int64_t blocks() const { return ceil_div(keys, rows_per_block); }

  void fill() {
    std::mt19937 random(seed);
    std::vector<uint8_t> alphabet(static_cast<size_t>(distinct * kRowBytes));
    const auto values = test::random_bf16(distinct * kColumns, seed);
    for (int64_t i = 0; i < distinct; ++i) {
      kernels::quantize_row(kernels::RowFormat::q4x, values.data() + i * kColumns, kColumns,
                            alphabet.data() + i * kRowBytes);
    }
    key_bytes.resize(static_cast<size_t>(blocks() * rows_per_block * kRowBytes));
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t pick = static_cast<int64_t>(random()) % distinct;
      std::copy_n(alphabet.begin() + pick * kRowBytes, kRowBytes,
                  key_bytes.begin() + j * kRowBytes);
    }
    packed.resize(static_cast<size_t>(rows * kHeads * kRowBytes));
    const auto queries = test::random_bf16(rows * kHeads * kColumns, seed + 7);
    for (int64_t i = 0; i < rows * kHeads; ++i) {
      kernels::quantize_row(kernels::RowFormat::q4x, queries.data() + i * kColumns, kColumns,
                            packed.data() + i * kRowBytes);
    }
    weights = test::random_bf16(rows * kHeads, seed + 9);
    for (int64_t i = 0; i < rows; ++i) {
      visible.push_back(i == 0 ? keys
                               : static_cast<int64_t>(random() % static_cast<uint32_t>(keys + 1)));
    }
    std::sort(visible.begin(), visible.end());
    questions.packed = packed.data();
    questions.head_weights = weights.data();
    questions.visible = visible.data();
    questions.rows = rows;
    questions.heads = kHeads;
    questions.columns = kColumns;
    questions.head_weight_scale = 0.125f;
    questions.mode = mode;
    questions.best = k;
    questions.candidate_block = block;
    questions.candidate_keep = keep;
  }

  kernels::PagedRows paged() {
    kernels::PagedRows out;
    out.base = key_bytes.data();
    out.page_bytes = rows_per_block * kRowBytes;
    out.row_bytes = kRowBytes;
    out.rows_per_page = rows_per_block;
    return out;
  }

  std::vector<uint8_t> key_bytes, packed;
  std::vector<Bf16> weights;
  std::vector<int64_t> visible;
  IndexQuestions questions;
};

struct Selected {
  std::vector<int32_t> indices;
  std::vector<uint32_t> mask;
  friend bool operator==(const Selected&, const Selected&) = default;
};

Selected single_scan(kernels::KernelContext& ctx, Case& c) {
  std::vector<int32_t> table(static_cast<size_t>(c.blocks()));
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
  const std::vector<int32_t> sequences(static_cast<size_t>(c.rows), 0);
  const int64_t stride = align_up(c.keys, 16);
  std::vector<float> scores(static_cast<size_t>(c.rows * stride));
  kernels::IndexScoreParams score;
  score.q = c.packed.data();
  score.head_weights = c.weights.data();
  score.head_weight_scale = c.questions.head_weight_scale;
  score.keys = c.paged();
  score.keys.page_table = table.data();
  score.keys.max_pages = c.blocks();
  score.sequences = sequences.data();
  score.visible = c.visible.data();
  score.scores = scores.data();
  score.score_stride = stride;
  score.rows = c.rows;
  score.heads = Case::kHeads;
  score.columns = Case::kColumns;
  score.mode = c.mode;
  test::expect_ok(kernels::index_score(ctx, score));

  Selected out;
  out.mask.resize(static_cast<size_t>(c.rows * ceil_div(c.keys, 32)));
  kernels::CandidateBlocksParams blocks;
  blocks.scores = scores.data();
  blocks.score_stride = stride;
  blocks.visible = c.visible.data();
  blocks.mask = out.mask.data();
  blocks.mask_stride = ceil_div(c.keys, 32);
  blocks.columns = c.keys;
  blocks.rows = c.rows;
  blocks.block = c.block;
  blocks.keep = c.keep;
  test::expect_ok(kernels::candidate_blocks(ctx, blocks));
  out.indices.resize(static_cast<size_t>(c.rows * c.k));
  kernels::TopkParams top;
  top.scores = scores.data();
  top.score_stride = stride;
  top.columns = c.keys;
  top.indices = out.indices.data();
  top.rows = c.rows;
  top.k = c.k;
  test::expect_ok(kernels::topk(ctx, top));
  return out;
}

Selected united(const Case& c, const std::vector<IndexFindings>& parts) {
  Selected out;
  const int64_t words = ceil_div(c.keys, 32);
  out.indices.resize(static_cast<size_t>(c.rows * c.k));
  out.mask.resize(static_cast<size_t>(c.rows * words));
  for (int64_t row = 0; row < c.rows; ++row) {
    std::vector<IndexFind> best, blocks;
    for (const IndexFindings& part : parts) {
      const auto more = part.best_of(row);
      best.insert(best.end(), more.begin(), more.end());
      const auto more_blocks = part.blocks_of(row);
      blocks.insert(blocks.end(), more_blocks.begin(), more_blocks.end());
    }
    write_best(best, c.k, out.indices.data() + row * c.k);
    write_candidates(blocks, c.visible[static_cast<size_t>(row)], c.keys, c.block, c.keep,
                     out.mask.data() + row * words, words);
  }
  return out;
}

Selected cut_scan(kernels::KernelContext& ctx, Case& c,
                  const std::vector<std::vector<int32_t>>& shards) {
  std::vector<IndexFindings> findings;
  for (const std::vector<int32_t>& blocks : shards) {
    const HeldBlocks held{blocks, blocks, c.rows};
    auto found = scan_blocks(ctx, c.questions, c.paged(), {&held, 1});
    EXPECT_TRUE(found.has_value()) << found.error().message();
    findings.push_back(std::move(*found));
  }
  return united(c, findings);
}

class IndexScan : public ::testing::Test {
 protected:
  kernels::KernelContext& ctx() { return *context_; }
  test::BackendContext context_{test::all_backends().front(), 2};
};

TEST_F(IndexScan, CountsTheVisibleRowsOfHeldBlocks) {
  const std::vector<int32_t> blocks{0, 2, 5};
  const std::vector<int64_t> want{0, 3, 4, 4, 4, 5, 8, 8, 9, 12, 12};
  const std::vector<int64_t> visible{0, 3, 4, 7, 8, 9, 12, 20, 21, 24, 100};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(visible_in(blocks, 4, visible[i]), want[i]) << visible[i];
  }
  EXPECT_EQ(visible_in({}, 4, 17), 0);
}

TEST_F(IndexScan, EveryCutInTwoGivesTheListsOfOneScan) {
  for (const IndexScoreMode mode : {IndexScoreMode::bf16, IndexScoreMode::fp32}) {
    // Around k = 7, around whole blocks of 8, and one key alone.
    for (const int64_t keys : {1, 6, 7, 8, 9, 15, 16, 17, 33, 64, 79}) {
      Case c;
      c.keys = keys;
      c.mode = mode;
      c.seed = static_cast<uint32_t>(keys);
      c.fill();
      const Selected want = single_scan(ctx(), c);
      for (uint32_t cut = 0; cut < 1u << std::min<int64_t>(c.blocks(), 7); ++cut) {
        std::vector<std::vector<int32_t>> shards(2);
        for (int32_t b = 0; b < static_cast<int32_t>(c.blocks()); ++b) {
          shards[cut >> (b % 7) & 1u].push_back(b);
        }
        ASSERT_EQ(cut_scan(ctx(), c, shards), want) << keys << " keys, cut " << cut;
      }
    }
  }
}

TEST_F(IndexScan, RandomCutsSizesAndTies) {
  std::mt19937 random(11);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(n));
  };
  for (int round = 0; round < 300; ++round) {
    Case c;
    c.block = 1 + below(9);
    c.rows_per_block = c.block * (1 + below(5));
    c.keys = 1 + below(400);
    c.rows = 1 + below(9);
    c.k = 1 + below(60);
    c.keep = 1 + below(30);
    c.distinct = 1 + below(below(2) == 0 ? 4 : 400);
    c.mode = below(2) == 0 ? IndexScoreMode::bf16 : IndexScoreMode::fp32;
    c.seed = static_cast<uint32_t>(round);
    c.fill();
    const Selected want = single_scan(ctx(), c);
    std::vector<std::vector<int32_t>> shards(static_cast<size_t>(1 + below(6)));
    for (int32_t b = 0; b < static_cast<int32_t>(c.blocks()); ++b) {
      shards[static_cast<size_t>(below(static_cast<int64_t>(shards.size())))].push_back(b);
    }
    ASSERT_EQ(cut_scan(ctx(), c, shards), want) << "round " << round;
  }
}

TEST_F(IndexScan, PartsOfSeveralSequencesInOneScan) {
  Case c;
  c.keys = 70;
  c.rows = 6;
  c.fill();
  // Rows 0, 1 of one sequence and rows 2 - 5 of another; here both have the same keys.
  const std::vector<HeldBlocks> parts{{{1, 4}, {1, 4}, 2}, {{0, 2, 8}, {0, 2, 8}, 4}};
  const auto both = scan_blocks(ctx(), c.questions, c.paged(), parts);
  ASSERT_TRUE(both.has_value()) << both.error().message();
  int64_t row = 0;
  for (const HeldBlocks& part : parts) {
    const auto alone = scan_blocks(ctx(), c.questions.slice(row, part.rows), c.paged(), {&part, 1});
    ASSERT_TRUE(alone.has_value());
    for (int64_t i = 0; i < part.rows; ++i, ++row) {
      EXPECT_TRUE(std::ranges::equal(both->best_of(row), alone->best_of(i))) << row;
      EXPECT_TRUE(std::ranges::equal(both->blocks_of(row), alone->blocks_of(i))) << row;
    }
  }
}

TEST_F(IndexScan, CandidateBlocksMustNotStraddleKvBlocks) {
  Case c;
  c.keys = 20;
  c.block = 3;
  c.fill();
  const HeldBlocks held{{0}, {0}, c.rows};
  test::expect_invalid(
      [&]() -> Status {
        CEDAR_TRY([[maybe_unused]] const auto found,
                  scan_blocks(ctx(), c.questions, c.paged(), {&held, 1}));
        return {};
      }(),
      "candidate_block", "3");
}

class KeyStore : public IndexScan {
 protected:
  IndexKeyStore::TimePoint in(int seconds) { return now_ + std::chrono::seconds(seconds); }
  std::span<const std::byte> keys(const Case& c, int64_t block, int64_t count = 1) {
    const auto bytes = static_cast<size_t>(c.rows_per_block * Case::kRowBytes);
    return std::as_bytes(std::span<const uint8_t>(c.key_bytes))
        .subspan(static_cast<size_t>(block) * bytes, static_cast<size_t>(count) * bytes);
  }
  static IndexBlockLayout layout(const Case& c) {
    return {{{0, static_cast<int32_t>(c.rows_per_block)}}, static_cast<int32_t>(Case::kRowBytes)};
  }
  const IndexKeyStore::TimePoint now_ = Clock::now();
};

TEST_F(KeyStore, AnswersAsTheOwnerWould) {
  Case c;
  c.keys = 200;
  c.fill();
  std::vector<IndexFindings> findings;
  std::vector<IndexKeyStore> stores;
  for (int s = 0; s < 3; ++s) {
    stores.push_back(std::move(*IndexKeyStore::create(1 << 20)));
    const IndexPartId part{7, static_cast<uint64_t>(s)};
    test::expect_ok(stores.back().open(part, layout(c), in(9)));
    int64_t held = 0;
    for (int32_t b = s; b < static_cast<int32_t>(c.blocks()); b += 3, ++held) {
      test::expect_ok(stores.back().append(part, held, {&b, 1}, keys(c, b), in(9)));
    }
    const IndexPartRows rows{part, held, c.rows};
    auto found = stores.back().scan(ctx(), c.questions, {&rows, 1}, in(9));
    ASSERT_TRUE(found.has_value()) << found.error().message();
    findings.push_back(std::move(*found));
  }
  EXPECT_EQ(united(c, findings), single_scan(ctx(), c));
}

TEST_F(KeyStore, ScansTheFirstBlocksThatWereAskedFor) {
  Case c;
  c.keys = 64;
  c.fill();
  IndexKeyStore store = std::move(*IndexKeyStore::create(1 << 20));
  const IndexPartId part{7, 1};
  test::expect_ok(store.open(part, layout(c), in(9)));
  const std::vector<int32_t> blocks{0, 1, 2, 3, 4, 5, 6, 7};
  test::expect_ok(store.append(part, 0, blocks, keys(c, 0, 8), in(9)));
  const IndexPartRows rows{part, 3, c.rows};
  const auto found = store.scan(ctx(), c.questions, {&rows, 1}, in(9));
  ASSERT_TRUE(found.has_value());
  const HeldBlocks held{{0, 1, 2}, {0, 1, 2}, c.rows};
  const auto want = scan_blocks(ctx(), c.questions, c.paged(), {&held, 1});
  EXPECT_EQ(found->best, want->best);
  EXPECT_EQ(found->blocks, want->blocks);
}

TEST_F(KeyStore, BoundsLeasesAndOwners) {
  Case c;
  c.keys = 64;
  c.fill();
  IndexKeyStore store = std::move(*IndexKeyStore::create(2 << 16));
  EXPECT_EQ(store.stats().bytes_total, 2 << 16);
  const IndexPartId mine{1, 1}, other{2, 1}, third{2, 2};
  const int32_t block = 0;
  test::expect_ok(store.open(mine, layout(c), in(10)));
  test::expect_ok(store.open(other, layout(c), in(20)));
  test::expect_ok(store.open(third, layout(c), in(20)));
  test::expect_ok(store.append(mine, 0, {&block, 1}, keys(c, 0), in(10)));
  test::expect_ok(store.append(other, 0, {&block, 1}, keys(c, 0), in(20)));
  const Status full = store.append(third, 0, {&block, 1}, keys(c, 0), in(20));
  ASSERT_FALSE(full.has_value());
  EXPECT_EQ(full.error().code, Errc::overloaded);
  EXPECT_EQ(full.error().context, "part 2 of owner 2: 65536 bytes needed, 0 free");
  EXPECT_EQ(store.stats().bytes_used, 2 << 16);

  EXPECT_EQ(store.expire(in(10)), 1);
  EXPECT_EQ(store.append(mine, 1, {&block, 1}, keys(c, 1), in(10)).error().code, Errc::not_found);
  test::expect_ok(store.append(third, 0, {&block, 1}, keys(c, 0), in(30)));
  EXPECT_EQ(store.expire(in(20)), 1);
  store.close_owner(2);
  EXPECT_EQ(store.stats().bytes_used, 0);
  EXPECT_EQ(store.stats().parts, 0);
}

TEST_F(KeyStore, RefusesWhatDoesNotFit) {
  Case c;
  c.keys = 64;
  c.fill();
  IndexKeyStore store = std::move(*IndexKeyStore::create(1 << 20));
  const IndexPartId part{1, 1};
  const auto error = [](const Status& status) {
    return status ? std::string("none") : status.error().message();
  };
  EXPECT_EQ(IndexKeyStore::create(1000).error().code, Errc::invalid_argument);
  EXPECT_NE(error(store.open(part, {{}, 17}, in(9))).find("0 sources"), std::string::npos);
  EXPECT_NE(error(store.open(part, {{{0, 5000}}, 17}, in(9))).find("65536"), std::string::npos);
  test::expect_ok(store.open(part, layout(c), in(9)));
  EXPECT_NE(error(store.open(part, layout(c), in(9))).find("is open already"), std::string::npos);
  const std::vector<int32_t> blocks{1, 1};
  EXPECT_NE(
      error(store.append(part, 0, blocks, keys(c, 0, 2), in(9))).find("block 1 after block 1"),
      std::string::npos);
  EXPECT_NE(error(store.append(part, 1, {blocks.data(), 1}, keys(c, 0), in(9)))
                .find("block 1 of the part after 0"),
            std::string::npos);
  EXPECT_NE(
      error(store.append(part, 0, {blocks.data(), 1}, keys(c, 0, 2), in(9))).find("272 bytes"),
      std::string::npos);
  test::expect_ok(store.append(part, 0, {blocks.data(), 1}, keys(c, 1), in(9)));
  const auto scan = [&](IndexPartRows rows) {
    const auto found = store.scan(ctx(), c.questions, {&rows, 1}, in(9));
    return found ? std::string("none") : found.error().message();
  };
  EXPECT_EQ(scan({part, 1, c.rows}), "none");
  EXPECT_NE(scan({part, 2, c.rows}).find("2 blocks, holds 1"), std::string::npos);
  EXPECT_NE(scan({part, 1, c.rows - 1}).find("5 questions about parts with 4 rows"),
            std::string::npos);
  EXPECT_NE(scan({part, 1, c.rows + 1}).find("6 rows of 5"), std::string::npos);
  EXPECT_NE(scan({{1, 2}, 1, c.rows}).find("not_found"), std::string::npos);
  c.questions.source = 3;
  EXPECT_NE(scan({part, 1, c.rows}).find("source 3"), std::string::npos);
  c.questions.source = 0;
  c.questions.columns = 64;
  EXPECT_NE(scan({part, 1, c.rows}).find("64"), std::string::npos);
}

}  // namespace
}  // namespace cedar::engine
