// A prompt whose first blocks are known already: imported, their windows rebuilt by a replay, the rest computed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/prefix_cache_fixture.h"

namespace cedar::engine {
namespace {

using ::testing::HasSubstr;

// Every hit of a long prompt, prompts that end around the block's edges, chunks that cross the cached prefix's end.
TEST_F(PrefixCache, ExactReplayGivesTheSameBytesAsNoCache) {
  for (const int64_t chunk : {int64_t{512}, int64_t{49}}) {
    use(ReplayMode::exact, chunk);
    const Tokens longest = prompt_of(20 * block_ + 2);
    for (const int64_t length :
         {20 * block_ - 1, 20 * block_, 20 * block_ + 1, 19 * block_ + 2, 13 * block_}) {
      const Tokens prompt(longest.begin(), longest.begin() + length);
      const Read cold = read(prompt);
      int64_t last_rows = length + 1;
      for (const int64_t hit : {int64_t{1}, int64_t{7}, int64_t{11}, (length - 1) / block_}) {
        SCOPED_TRACE("chunk " + std::to_string(chunk) + ", " + std::to_string(length) +
                     " tokens, hit " + std::to_string(hit));
        const Read warm = read(prompt, cold.blocks, hit);
        expect_same_blocks(warm, cold, prompt);
        EXPECT_TRUE(warm.state == cold.state);
        EXPECT_EQ(warm.cached, hit * block_);
        EXPECT_LE(warm.rows, last_rows);
        last_rows = warm.rows;
      }
      EXPECT_LT(last_rows, length);  // something was saved
    }
  }
}

// As it is by default: the decoder's replay is bounded, and the cache changes nothing.
TEST_F(PrefixCache, ACacheChangesNothingBesidesABoundedReplayOfTheDecoder) {
  for (const ReplayMode replay : {ReplayMode::bounded, ReplayMode::exact}) {
    for (const ReplayMode resume : {ReplayMode::exact, ReplayMode::bounded}) {
      use(replay, 512, resume);
      const Tokens prompt = prompt_of(20 * block_ + 5);
      const Read cold = read(prompt);
      const Read warm = read(prompt, cold.blocks, 20);
      EXPECT_LT(warm.rows, cold.rows);
      if (resume == ReplayMode::bounded) {
        EXPECT_EQ(answer(prompt, warm, 4).ids.size(), 4u);
        continue;
      }
      expect_same_blocks(warm, cold, prompt);
      EXPECT_TRUE(warm.state == cold.state);
      EXPECT_EQ(answer(prompt, warm, 4).logprobs, answer(prompt, cold, 4).logprobs);
    }
  }
}

// One replayed row less would not do: what "exact" costs is what it needs.
TEST_F(PrefixCache, ExactReplayIsAsLongAsItMustBe) {
  use(ReplayMode::exact);
  const auto& model = prefill_->model();
  const int64_t per_layer = model.config.sliding_window - 1;
  const Position length = 20 * block_;
  const Position cached = 19 * block_;
  const Position kept = length - replay_rows(model, ReplayMode::exact, length);
  EngineOptions options;
  options.replay = options.resume = ReplayMode::exact;
  EXPECT_EQ(resume_start(model, options, cached, length),
            kept - per_layer * model.plan.encoder_layers());
  EXPECT_EQ(resume_start(model, options, 2 * block_, length), 0);
  EXPECT_EQ(resume_start(model, options, 0, length), 0);
  options.replay = ReplayMode::bounded;
  EXPECT_EQ(resume_start(model, options, cached, length),
            cached - per_layer * model.plan.encoder_layers());
  options.resume = ReplayMode::bounded;
  EXPECT_EQ(resume_start(model, options, cached, length), cached - block_);
  EXPECT_EQ(resume_start(model, options, block_, length), 0);
  // What the decoder replays has to be computed, too.
  options.replay = ReplayMode::exact;
  EXPECT_EQ(resume_start(model, options, cached, length), kept);
}

// Field report B35: caches of one window and two windows of tokens, one less and one more. What a hit brings is whole
// blocks, the first replayed row has a page, and cached rows are never written.
TEST_F(PrefixCache, HitsAroundBlockEdges) {
  for (const ReplayMode mode : {ReplayMode::bounded, ReplayMode::exact}) {
    use(mode);
    for (const int64_t cached_tokens : {2 * block_ - 1, 2 * block_, 2 * block_ + 1}) {
      SCOPED_TRACE(cached_tokens);
      const Tokens prompt = prompt_of(cached_tokens + 41);
      const Read before = read(Tokens(prompt.begin(), prompt.begin() + cached_tokens));
      const int64_t hit = cached_tokens / block_;
      const Read cold = read(prompt);
      const Read warm = read(prompt, before.blocks, hit);
      for (int64_t i = 0; i < hit; ++i) {
        EXPECT_TRUE(warm.blocks[static_cast<size_t>(i)] == before.blocks[static_cast<size_t>(i)]);
      }
      const Answer want = answer(prompt, cold, 8);
      const Answer got = answer(prompt, warm, 8);
      if (mode == ReplayMode::exact || hit == 1) {
        EXPECT_EQ(got.ids, want.ids);
        EXPECT_EQ(got.logprobs, want.logprobs);
      }
      const Answer again = answer(prompt, read(prompt, before.blocks, hit), 8);
      EXPECT_EQ(again.ids, got.ids);
      EXPECT_EQ(again.logprobs, got.logprobs);
    }
  }
}

// Field report B36: the window belongs to the request; the third answer is the second one, and with exact replay the first.
TEST_F(PrefixCache, TheSamePromptThreeTimes) {
  for (const ReplayMode mode : {ReplayMode::exact, ReplayMode::bounded}) {
    use(mode);
    const Tokens prompt = prompt_of(20 * block_ + 10);
    const Read first = read(prompt);
    const Answer cold = answer(prompt, first, 12);
    const int64_t hit = prefill_->usable_blocks(static_cast<Position>(prompt.size()), 20);
    EXPECT_EQ(hit, 20);
    // Someone else's windows lie in the ring meanwhile.
    (void)read(prompt_of(5 * block_ + 3, 7));
    const Read second = read(prompt, first.blocks, hit);
    (void)read(prompt_of(3 * block_ + 1, 8));
    const Read third = read(prompt, first.blocks, hit);
    EXPECT_TRUE(third.state == second.state);
    const Answer warm = answer(prompt, second, 12);
    EXPECT_EQ(answer(prompt, third, 12).logprobs, warm.logprobs);
    if (mode == ReplayMode::exact) {
      EXPECT_EQ(warm.ids, cold.ids);
      EXPECT_EQ(warm.logprobs, cold.logprobs);
      continue;
    }
    // How far the bounded replay is: of the first token's probability, and how many tokens agree.
    size_t agree = 0;
    while (agree < cold.ids.size() && cold.ids[agree] == warm.ids[agree]) ++agree;
    const double distance = std::abs(double{cold.logprobs[0]} - double{warm.logprobs[0]});
    RecordProperty("first_logprob_distance", std::to_string(distance));
    std::printf(
        "bounded replay, hit %lld of %zu tokens: first logprob differs by %.3g, %zu of %zu "
        "tokens agree; %lld rows computed\n",
        static_cast<long long>(hit * block_), prompt.size(), distance, agree, cold.ids.size(),
        static_cast<long long>(second.rows));
    EXPECT_EQ(second.rows, block_ + 10);
    EXPECT_TRUE(std::isfinite(distance));
  }
}

// Field report B43: the whole prompt is cached, yet its last block is computed.
TEST_F(PrefixCache, APromptOfWholeBlocksTwice) {
  for (const ReplayMode mode : {ReplayMode::exact, ReplayMode::bounded}) {
    use(mode);
    for (const int64_t blocks : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{16}}) {
      SCOPED_TRACE(blocks);
      const Tokens prompt = prompt_of(blocks * block_);
      const Read first = read(prompt);
      const int64_t hit = prefill_->usable_blocks(blocks * block_, blocks);
      EXPECT_LT(hit, blocks);
      const Read second = read(prompt, first.blocks, hit);
      EXPECT_GE(second.rows, 1);
      const Answer got = answer(prompt, second, 3);
      EXPECT_EQ(got.ids.size(), 3u);
      EXPECT_TRUE(mode == ReplayMode::bounded || second.state == first.state);
    }
    const Status refused = prefill_->submit({RequestId{900}, prompt_of(2 * block_), {}, 2});
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().message(), HasSubstr("leave nothing to compute"));
  }
}

TEST_F(PrefixCache, AnAnswersBlocksAreThoseOfItsNextTurn) {
  use(ReplayMode::exact);
  for (const int64_t length : {block_ - 1, block_, block_ + 1, 5 * block_ + 7}) {
    SCOPED_TRACE(length);
    const Tokens prompt = prompt_of(length);
    const Answer first = answer(prompt, read(prompt), 2 * block_ + 2);
    Tokens next = prompt;
    next.insert(next.end(), first.ids.begin(), first.ids.end());
    const Read cold = read(next);
    // The last token of an answer has no rows yet.
    const int64_t from = length / block_;
    const int64_t to = (static_cast<int64_t>(next.size()) - 1) / block_;
    ASSERT_EQ(static_cast<int64_t>(first.blocks.size()), to - from);
    for (const auto& [index, bytes] : first.blocks) {
      EXPECT_TRUE(bytes == cold.blocks[static_cast<size_t>(index)]) << "block " << index;
    }
  }
}

TEST_F(PrefixCache, ResumesSideBySideWithOthers) {
  use(ReplayMode::exact, 64);
  const Tokens a = prompt_of(20 * block_ + 3, 3);
  const Tokens b = prompt_of(6 * block_ + 1, 4);
  const Read cold_a = read(a);
  const Read cold_b = read(b);
  const RequestId id_a{501}, id_b{502}, id_c{503};
  ASSERT_TRUE(prefill_->submit({id_a, a, {}, 19}).has_value());
  ASSERT_TRUE(prefill_->submit({id_b, b, {}}).has_value());
  ASSERT_TRUE(prefill_->submit({id_c, a, {}, 17}).has_value());
  ASSERT_TRUE(prefill_->step().has_value());  // b alone: the others wait for their blocks
  for (int64_t i = 0; i < 19; ++i) {
    ASSERT_TRUE(prefill_->import_block(id_a, i, cold_a.blocks[static_cast<size_t>(i)]));
  }
  ASSERT_TRUE(prefill_->resume(id_a, 19).has_value());
  // c's blocks could not be had.
  ASSERT_TRUE(prefill_->resume(id_c, 0).has_value());
  while (!prefill_->idle()) ASSERT_TRUE(prefill_->step().has_value());
  const Read warm_a = collect(id_a, 21);
  expect_same_blocks(warm_a, cold_a, a);
  EXPECT_TRUE(warm_a.state == cold_a.state);
  EXPECT_TRUE(collect(id_b, 7).state == cold_b.state);
  EXPECT_TRUE(collect(id_c, 21).state == cold_a.state);
  EXPECT_EQ(prefill_->load().requests, 0);
}

TEST_F(PrefixCache, WhatCannotBeImportedIsRefused) {
  use(ReplayMode::bounded);
  const Tokens prompt = prompt_of(3 * block_);
  const Read cold = read(prompt);
  const RequestId id{700};
  ASSERT_TRUE(prefill_->submit({id, prompt, {}, 2}).has_value());
  const auto import = [&](RequestId request, int64_t index, std::span<const std::byte> bytes) {
    const Status status = prefill_->import_block(request, index, bytes);
    return status ? std::string("ok") : status.error().message();
  };
  EXPECT_THAT(import(id, 2, cold.blocks[2]), HasSubstr("cached block 2 of 2"));
  EXPECT_THAT(import(id, -1, cold.blocks[0]), HasSubstr("cached block -1 of 2"));
  EXPECT_THAT(import(id, 0, std::span(cold.blocks[0]).first(5)), HasSubstr("5 bytes of"));
  EXPECT_THAT(import(RequestId{701}, 0, cold.blocks[0]), HasSubstr("request 701"));
  EXPECT_EQ(import(id, 1, cold.blocks[1]), "ok");
  EXPECT_FALSE(prefill_->resume(id, 2).has_value());  // block 0 is missing
  EXPECT_EQ(import(id, 0, cold.blocks[0]), "ok");
  EXPECT_TRUE(prefill_->resume(id, 2).has_value());
  EXPECT_FALSE(prefill_->resume(id, 2).has_value());
  EXPECT_THAT(import(id, 0, cold.blocks[0]), HasSubstr("does not wait"));
  const int64_t free_before = prefill_->load().free_blocks;
  prefill_->release(id);
  EXPECT_EQ(prefill_->load().free_blocks, free_before + 3);
}

}  // namespace
}  // namespace cedar::engine
