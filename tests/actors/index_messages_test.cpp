// What stages and indexers say to each other, and which blocks are with whom.

#include "actors/index_messages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "actors/index_parts.h"
#include "actors/index_scan_calls.h"

namespace cedar::actors {
namespace {

engine::IndexQuestions questions(int64_t rows, const std::vector<uint8_t>& packed,
                                 const std::vector<Bf16>& weights,
                                 const std::vector<int64_t>& visible) {
  engine::IndexQuestions q;
  q.source = 2;
  q.packed = packed.data();
  q.head_weights = weights.data();
  q.visible = visible.data();
  q.rows = rows;
  q.heads = 2;
  q.columns = 32;
  q.head_weight_scale = 0.125F;
  q.mode = kernels::IndexScoreMode::bf16;
  q.best = 3;
  q.candidate_block = 4;
  q.candidate_keep = 2;
  return q;
}

struct Rows {
  explicit Rows(int64_t count)
      : packed(static_cast<size_t>(count * 2 * 17)), weights(static_cast<size_t>(count * 2)) {
    for (size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<uint8_t>(i * 7);
    for (size_t i = 0; i < weights.size(); ++i) weights[i].bits = static_cast<uint16_t>(i);
    for (int64_t i = 0; i < count; ++i) visible.push_back(10 + i);
    asked = questions(count, packed, weights, visible);
  }
  std::vector<uint8_t> packed;
  std::vector<Bf16> weights;
  std::vector<int64_t> visible;
  engine::IndexQuestions asked;
};

TEST(IndexMessages, AppendComesBackAndEndsEarlyNowhere) {
  AppendKeys message;
  message.part = 0x123456789abcdef0;
  message.first = 7;
  message.layout = {{{0, 64}, {3, 128}}, 68};
  message.blocks = {3, 9};
  const Bytes keys(11, std::byte{5});
  message.keys = keys;
  const Bytes bytes = serialise(message);
  const auto got = parse_append(bytes);
  ASSERT_TRUE(got.has_value()) << got.error().message();
  EXPECT_EQ(got->part, message.part);
  EXPECT_EQ(got->first, 7);
  EXPECT_EQ(got->layout, message.layout);
  EXPECT_EQ(got->blocks, message.blocks);
  EXPECT_TRUE(std::ranges::equal(got->keys, keys));
  for (size_t size = 0; size < bytes.size() - keys.size(); ++size) {
    EXPECT_FALSE(parse_append(std::span(bytes).first(size)).has_value()) << size;
  }
}

TEST(IndexMessages, ScanComesBackInTheOrderOfItsParts) {
  const Rows rows(5);
  ScanWriter writer(rows.asked);
  writer.add_rows({8, 4, 2}, rows.asked, 3);
  writer.add_rows({9, 1, 1}, rows.asked, 0);
  const Bytes bytes = writer.take();
  const auto got = parse_scan(bytes);
  ASSERT_TRUE(got.has_value()) << got.error().message();
  EXPECT_EQ(got->questions.rows, 3);
  EXPECT_EQ(got->questions.source, 2);
  EXPECT_EQ(got->questions.head_weight_scale, 0.125F);
  EXPECT_EQ(got->questions.mode, kernels::IndexScoreMode::bf16);
  EXPECT_EQ(got->questions.best, 3);
  EXPECT_EQ(got->questions.candidate_block, 4);
  EXPECT_EQ(got->questions.candidate_keep, 2);
  ASSERT_EQ(got->parts.size(), 2U);
  EXPECT_EQ(got->parts[1].part, 9U);
  EXPECT_EQ(got->parts[0].blocks, 4);
  EXPECT_EQ(got->visible, (std::vector<int64_t>{13, 14, 10}));
  EXPECT_EQ(got->packed[0], rows.packed[3 * 34]);
  EXPECT_EQ(got->head_weights[4].bits, rows.weights[0].bits);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(parse_scan(std::span(bytes).first(size)).has_value()) << size;
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_scan(longer).has_value());
}

TEST(IndexMessages, AnyByteMayBeWrong) {
  const Rows rows(2);
  ScanWriter writer(rows.asked);
  writer.add_rows({8, 4, 2}, rows.asked, 0);
  const Bytes scan = writer.take();
  std::mt19937 random(3);
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes = scan;
    bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto got = parse_scan(bytes);
    if (!got) continue;
    for (const int64_t visible : got->visible) {
      EXPECT_GE(visible, 0);
      EXPECT_LE(visible, INT32_MAX);
    }
  }
}

TEST(IndexMessages, FindingsAreCheckedAgainstTheQuestions) {
  const Rows rows(2);
  const std::vector<int64_t> visible{10, 3};
  const engine::IndexFindings good{
      {3, 4}, {1, 2}, {{1, 0}, {3, 5}, {2, 9}, {1, 2}}, {{9, 2}, {4, 0}}};
  const auto parse = [&](const engine::IndexFindings& findings) {
    return parse_findings(serialise(findings), rows.asked, visible);
  };
  const auto got = parse(good);
  ASSERT_TRUE(got.has_value()) << got.error().message();
  EXPECT_EQ(got->best, good.best);
  EXPECT_EQ(got->blocks, good.blocks);

  const auto changed = [&](const std::function<void(engine::IndexFindings&)>& change) {
    engine::IndexFindings findings = good;
    change(findings);
    return parse(findings).has_value();
  };
  EXPECT_TRUE(changed([](auto&) {}));
  EXPECT_FALSE(changed([](auto& f) { f.best[2].index = 10; }));   // not visible
  EXPECT_FALSE(changed([](auto& f) { f.best[2].index = 5; }));    // twice
  EXPECT_FALSE(changed([](auto& f) { f.best[0].index = -1; }));   // below all
  EXPECT_FALSE(changed([](auto& f) { f.best[0].score = NAN; }));  // no order
  EXPECT_FALSE(changed([](auto& f) { f.blocks[1].index = 1; }));  // beyond the visible
  EXPECT_FALSE(changed([](auto& f) { f.best_end = {4, 4}; }));    // more than asked for
  EXPECT_FALSE(changed([](auto& f) { f.best_end = {4, 3}; }));
  EXPECT_FALSE(changed([](auto& f) { f.best_end = {3}; }));
  EXPECT_FALSE(changed([](auto& f) { f.best.pop_back(); }));
  const Bytes bytes = serialise(good);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(parse_findings(std::span(bytes).first(size), rows.asked, visible).has_value());
  }
}

TEST(IndexScanCalls, OneCallAHolderUnlessItIsTooLong) {
  const Rows rows(10);
  const std::vector<engine::IndexScanRows> entries{{engine::IndexSequence(1), 0, 4},
                                                   {engine::IndexSequence(2), 5, 5}};
  const HolderId a{1, 1}, b{2, 1};
  std::vector<ScanPiece> pieces{{0, a, 1, 11, {0, 2}}, {0, b, 1, 12, {1}}, {1, a, 2, 13, {0}}};
  auto calls = plan_scan_calls(rows.asked, entries, pieces, 1 << 20);
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].holder, a);
  EXPECT_EQ(calls[0].slices.size(), 2U);
  EXPECT_EQ(calls[0].visible, (std::vector<int64_t>{10, 11, 12, 13, 15, 16, 17, 18, 19}));

  // A reply of (3 + 2) x 8 + 16 bytes a row: at most six rows a call.
  calls = plan_scan_calls(rows.asked, entries, pieces, 6 * 56);
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[0].visible.size(), 6U);
  EXPECT_EQ(calls[2].visible, (std::vector<int64_t>{17, 18, 19}));
  const auto of = [](int64_t rows_count) {
    engine::IndexFindings findings;
    for (int64_t i = 0; i < rows_count; ++i) {
      findings.best.push_back({1, static_cast<int32_t>(i)});
      findings.best_end.push_back(i + 1);
      findings.block_end.push_back(0);
    }
    return serialise(findings);
  };
  std::vector<Result<Bytes>> replies{of(6), of(4), make_error(Errc::unavailable, "gone")};
  const auto answers = join_replies(rows.asked, pieces, calls, replies);
  ASSERT_EQ(answers.size(), 3U);
  EXPECT_EQ(answers[0].blocks, (std::vector<int32_t>{0, 2}));
  ASSERT_TRUE(answers[0].findings.has_value());
  EXPECT_EQ(answers[0].findings->best_end, (std::vector<int64_t>{1, 2, 3, 4}));
  ASSERT_TRUE(answers[1].findings.has_value());
  // Two of its five rows came, which is of no use.
  EXPECT_EQ(answers[2].entry, 1U);
  EXPECT_FALSE(answers[2].findings.has_value());
}

TEST(IndexParts, BlocksGoRoundAndAscend) {
  const HolderId a{1, 1}, b{2, 1};
  uint64_t next = 100;
  SpreadSequence sequence({{{0, 4}}, 17});
  using Blocks = std::vector<int32_t>;
  EXPECT_EQ(sequence.assign(5, {}, 10, next), Blocks{});
  const std::vector<HolderId> both{a, b};
  EXPECT_EQ(sequence.assign(5, both, 2, next), (Blocks{0, 1, 2, 3}));
  EXPECT_EQ(sequence.assign(5, both, 2, next), Blocks{});  // both are being sent to
  IndexPart* of_a = sequence.part_of(0);
  IndexPart* of_b = sequence.part_of(1);
  EXPECT_EQ(of_a->blocks, (Blocks{0, 2}));
  EXPECT_EQ(of_a->held, 0);
  sequence.sent(*of_a, true);
  sequence.sent(*of_b, false);
  EXPECT_EQ(of_a->held, 2);
  EXPECT_EQ(of_b->blocks, Blocks{});
  EXPECT_EQ(sequence.assign(7, both, 9, next), (Blocks{1, 3, 4, 5, 6}));
  sequence.sent(*sequence.part_of(0), true);
  sequence.sent(*sequence.part_of(1), true);
  EXPECT_EQ(sequence.parts().size(), 2U);

  // b is lost: its blocks go to a, behind none of what a has, so as a part of their own.
  sequence.lose(*sequence.part_of(1));
  EXPECT_EQ(sequence.part_of(1), nullptr);
  const std::vector<HolderId> one{a};
  EXPECT_EQ(sequence.assign(7, one, 9, next), (Blocks{1, 3, 5}));
  EXPECT_EQ(sequence.part_of(1)->number, 102U);
  EXPECT_EQ(sequence.part_of(1)->blocks, (Blocks{1, 3, 5}));
  EXPECT_EQ(sequence.find(101)->lost, true);
  EXPECT_EQ(sequence.find(7), nullptr);
}

}  // namespace
}  // namespace cedar::actors
