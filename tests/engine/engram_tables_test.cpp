#include "engine/engram_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/engram_source.h"
#include "engine/loaded_model.h"
#include "engine/prefill_engine.h"
#include "model/checkpoint.h"
#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

using ::testing::HasSubstr;

TEST(EngramShards, EveryRowIsInOneRange) {
  for (const int64_t rows : {1, 2, 3, 7, 100, 101, 997}) {
    for (const int32_t count : {1, 2, 3, 5, 64, 200}) {
      int64_t next = 0;
      for (int32_t i = 0; i < count; ++i) {
        const EngramRowRange range = engram_row_range(rows, {i, count});
        EXPECT_EQ(range.begin, next);
        next = range.end;
        for (int64_t row = range.begin; row < range.end; ++row) {
          EXPECT_EQ(engram_shard_of(rows, row, count), i) << rows << ' ' << row << ' ' << count;
        }
      }
      EXPECT_EQ(next, rows);
    }
  }
  // Of the release, whose products do not fit 32 bits.
  const int64_t release = 384016682;
  EXPECT_EQ(engram_shard_of(release, release - 1, 4096), 4095);
  EXPECT_EQ(engram_shard_of(release, 0, 4096), 0);
}

class EngramTablesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = model::load_checkpoint(testing::mini_path(), model::Role::encoder);
    ASSERT_TRUE(loaded) << loaded.error().message();
    checkpoint_ = std::make_shared<const model::Checkpoint>(std::move(*loaded));
    layer_ = static_cast<LayerId>(checkpoint_->config.engram_layer_ids.at(0));
    rows_ = checkpoint_->layers[static_cast<size_t>(layer_)]->engram->embed_weight.shape.at(0);
  }
  std::shared_ptr<EngramTables> tables(EngramShard shard) const {
    auto made = EngramTables::create(checkpoint_, shard);
    EXPECT_TRUE(made) << made.error().message();
    return made ? *made : nullptr;
  }
  std::shared_ptr<const model::Checkpoint> checkpoint_;
  LayerId layer_ = 0;
  int64_t rows_ = 0;
};

TEST_F(EngramTablesTest, ShardsHaveTheRowsOfTheWholeTable) {
  const auto whole = tables({});
  const auto row_bytes = static_cast<size_t>(whole->row_bytes());
  int64_t bytes = 0;
  for (int32_t i = 0; i < 3; ++i) {
    const auto shard = tables({i, 3});
    bytes += shard->bytes();
    const EngramRowRange range = engram_row_range(rows_, {i, 3});
    const std::vector<int64_t> ids{range.end - 1, range.begin, range.end - 1};
    std::vector<uint8_t> expected(3 * row_bytes), got(3 * row_bytes);
    ASSERT_TRUE(whole->copy(layer_, ids, expected.data()));
    ASSERT_TRUE(shard->copy(layer_, ids, got.data()));
    EXPECT_EQ(got, expected);
  }
  EXPECT_EQ(bytes, whole->bytes());
}

TEST_F(EngramTablesTest, WhatIsNotHereIsAnError) {
  std::vector<uint8_t> out(1024);
  const auto shard = tables({1, 2});
  const std::vector<int64_t> elsewhere{0};
  const Status other = shard->copy(layer_, elsewhere, out.data());
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Errc::invalid_argument);
  EXPECT_THAT(other.error().context, HasSubstr("row 0 of layer"));
  EXPECT_THAT(other.error().context, HasSubstr("shard 1 of 2"));
  for (const int64_t row : {rows_, int64_t{-1}}) {
    EXPECT_EQ(tables({})->copy(layer_, {&row, 1}, out.data()).error().code, Errc::invalid_argument);
  }
  const auto& with_table = checkpoint_->config.engram_layer_ids;
  LayerId without = 0;
  while (std::count(with_table.begin(), with_table.end(), without) != 0) ++without;
  const Status no_table = shard->copy(without, elsewhere, out.data());
  ASSERT_FALSE(no_table);
  EXPECT_EQ(no_table.error().code, Errc::unavailable);
  EXPECT_FALSE(EngramTables::create(checkpoint_, {2, 2}));
  EXPECT_FALSE(EngramTables::create(checkpoint_, {-1, 2}));
  EXPECT_FALSE(EngramTables::create(checkpoint_, {0, 0}));
}

TEST_F(EngramTablesTest, AllIsReadWhereThereIsRoom) {
  const auto shard = tables({0, 2});
  std::vector<int64_t> done;
  ASSERT_TRUE(shard->make_resident([&](int64_t now, int64_t total) {
    EXPECT_EQ(total, shard->bytes());
    done.push_back(now);
    return true;
  }));
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  ASSERT_FALSE(done.empty());
  EXPECT_EQ(done.back(), shard->bytes());
  const Status stopped = shard->make_resident([](int64_t, int64_t) { return false; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Errc::cancelled);
  const Status full = shard->make_resident(shard->bytes() - 1, {});
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Errc::out_of_memory);
  EXPECT_THAT(full.error().context, HasSubstr("needs"));
  EXPECT_THAT(full.error().context, HasSubstr("available"));
}

/// Local rows; remembers what was asked for and when.
class RecordingSource final : public EngramSource {
 public:
  explicit RecordingSource(std::shared_ptr<EngramSource> local) : local_(std::move(local)) {}
  Status fetch(LayerId layer, std::span<const int64_t> rows, uint8_t* packed) override {
    for (const int64_t row : rows) {
      ++fetched;
      if (asked_.count({layer, row}) == 0) ++not_asked;
    }
    if (fails) return make_error(Errc::unavailable, "Engram shard 0 of 1: nobody");
    return local_->fetch(layer, rows, packed);
  }
  void prefetch(LayerId layer, std::span<const int64_t> rows) override {
    for (const int64_t row : rows) asked_.insert({layer, row});
  }
  bool wants_prefetch() const override { return true; }

  size_t asked() const { return asked_.size(); }
  int64_t fetched = 0, not_asked = 0;
  bool fails = false;

 private:
  std::shared_ptr<EngramSource> local_;
  std::set<std::pair<LayerId, int64_t>> asked_;
};

class PrefetchTest : public ::testing::Test {
 protected:
  std::shared_ptr<const LoadedModel> model_ = testing::mini_model();
  std::shared_ptr<RecordingSource> source_ =
      std::make_shared<RecordingSource>(local_engram_source(model_));
  std::unique_ptr<PrefillEngine> engine(int64_t chunk) {
    EngineOptions options;
    options.threads = 1;
    options.max_sequences = 4;
    options.prefill_chunk_tokens = chunk;
    auto made = PrefillEngine::create(model_, source_, options);
    EXPECT_TRUE(made) << made.error().message();
    return made ? std::move(*made) : nullptr;
  }
  static std::vector<TokenId> prompt(int64_t length, TokenId first) {
    std::vector<TokenId> tokens;
    for (TokenId i = 0; i < length; ++i) tokens.push_back(10 + (first + i * 7) % 500);
    return tokens;
  }
};

TEST_F(PrefetchTest, RowsAreAskedForAChunkAhead) {
  const auto prefill = engine(16);
  ASSERT_TRUE(prefill->submit({RequestId{1}, prompt(50, 1), {}, 0}));
  const size_t first = source_->asked();
  EXPECT_GT(first, 0u);  // at once
  ASSERT_TRUE(prefill->step());
  EXPECT_GT(source_->asked(), first);  // of the second chunk, before it is its turn
  EXPECT_EQ(source_->not_asked, 0);
  const size_t second = source_->asked();
  // One that comes in between changes what is next.
  ASSERT_TRUE(prefill->submit({RequestId{2}, prompt(20, 300), {}, 0}));
  EXPECT_EQ(source_->asked(), second);
  while (!prefill->idle()) ASSERT_TRUE(prefill->step());
  EXPECT_GT(source_->fetched, 0);
  EXPECT_EQ(source_->not_asked, 0);
}

TEST_F(PrefetchTest, AMissingTableFailsTheStepAndNotTheEngine) {
  const auto prefill = engine(16);
  const int64_t free = prefill->load().free_blocks;
  ASSERT_TRUE(prefill->submit({RequestId{1}, prompt(50, 1), {}, 0}));
  ASSERT_TRUE(prefill->step());
  source_->fails = true;
  const auto step = prefill->step();
  ASSERT_FALSE(step);
  EXPECT_EQ(step.error().code, Errc::unavailable);
  EXPECT_THAT(step.error().context, HasSubstr("shard 0 of 1"));
  prefill->release(RequestId{1});
  EXPECT_EQ(prefill->load().free_blocks, free);
  source_->fails = false;
  ASSERT_TRUE(prefill->submit({RequestId{2}, prompt(50, 1), {}, 0}));
  bool finished = false;
  while (!prefill->idle()) {
    const auto events = prefill->step();
    ASSERT_TRUE(events);
    for (const PrefillEvent& event : *events) finished = finished || event.finished;
  }
  EXPECT_TRUE(finished);
}

}  // namespace
}  // namespace cedar::engine
