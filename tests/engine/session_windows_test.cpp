// Windows of a session between its turns: kept at a prompt's last whole block, taken over by the next turn instead of a
// replay.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/engine/prefix_cache_fixture.h"

namespace cedar::engine {
namespace {

using ::testing::HasSubstr;

class SessionWindows : public PrefixCache {
 protected:
  SessionWindows() { keep_ = true; }
  Tokens first(const Tokens& prompt, int64_t length) {
    return {prompt.begin(), prompt.begin() + length};
  }
  int64_t size(const Tokens& tokens) { return static_cast<int64_t>(tokens.size()); }
  void expect_same(const Read& got, const Read& want, const Tokens& prompt) {
    expect_same_blocks(got, want, prompt);
    EXPECT_TRUE(got.state == want.state);
    EXPECT_EQ(got.windows_at, want.windows_at);
    EXPECT_TRUE(got.windows == want.windows);
  }
  std::string import_error(RequestId id, Handoff state) {
    const Status status = prefill_->import_windows(id, std::move(state));
    return status ? std::string("ok") : status.error().message();
  }
};

// What is kept is what a prompt of just so many tokens hands over, wherever the prompt and its chunks end.
TEST_F(SessionWindows, AreTheHandoffOfThePrefix) {
  for (const ReplayMode replay : {ReplayMode::bounded, ReplayMode::exact}) {
    for (const int64_t chunk : {int64_t{512}, int64_t{49}, int64_t{1}}) {
      use(replay, chunk, ReplayMode::exact);
      const Tokens longest = prompt_of(8 * block_ + 5);
      for (const int64_t blocks : {int64_t{1}, int64_t{2}, int64_t{8}}) {
        const Read prefix = read(first(longest, blocks * block_));
        EXPECT_EQ(prefix.windows_at, blocks * block_);
        EXPECT_TRUE(prefix.windows == prefix.state);
        for (const int64_t more : {1, 2, 5}) {
          SCOPED_TRACE("chunk " + std::to_string(chunk) + ", " + std::to_string(blocks) +
                       " blocks and " + std::to_string(more));
          const Tokens prompt = first(longest, blocks * block_ + more);
          const Read got = read(prompt);
          EXPECT_EQ(got.windows_at, blocks * block_);
          EXPECT_TRUE(got.windows == prefix.state);
          EXPECT_EQ(got.rows, size(prompt));  // no second pass
          keep_ = false;
          const Read without = read(prompt);
          keep_ = true;
          EXPECT_EQ(without.windows_at, 0);
          EXPECT_TRUE(without.state == got.state);
        }
      }
    }
  }
  EXPECT_EQ(read(prompt_of(block_ - 1)).windows_at, 0);
}

// Whatever the settings say of replays: with windows nothing is truncated.
TEST_F(SessionWindows, GiveTheSameBytesAsNoCache) {
  for (const ReplayMode replay : {ReplayMode::bounded, ReplayMode::exact}) {
    for (const auto& [chunk, resume] : {std::pair{int64_t{512}, ReplayMode::bounded},
                                        std::pair{int64_t{49}, ReplayMode::exact}}) {
      use(replay, chunk, resume);
      const Tokens longest = prompt_of(14 * block_ + 3);
      std::map<int64_t, Bytes> windows;
      for (const int64_t kept : {int64_t{1}, int64_t{9}, int64_t{12}}) {
        // An odd end of the turn before, and an even one.
        windows[kept] = read(first(longest, kept * block_ + kept % 2)).windows;
      }
      for (const int64_t length :
           {13 * block_ - 1, 13 * block_, 13 * block_ + 1, 14 * block_ + 3}) {
        const Tokens prompt = first(longest, length);
        const Read cold = read(prompt);
        for (const auto& [kept, state] : windows) {
          for (const int64_t hit : {kept, kept + 1, (length - 1) / block_}) {
            // Farther behind, a replay is shorter.
            if (hit < kept || hit > kept + 8 || hit * block_ >= length) continue;
            SCOPED_TRACE("chunk " + std::to_string(chunk) + ", " + std::to_string(length) +
                         " tokens, windows behind " + std::to_string(kept) + " of " +
                         std::to_string(hit) + " blocks");
            const Read warm = read_with(prompt, {cold.blocks, hit, &state});
            ASSERT_EQ(warm.resume, ResumeKind::windows);
            EXPECT_EQ(warm.cached, hit * block_);
            EXPECT_EQ(warm.replayed, (hit - kept) * block_);
            EXPECT_EQ(warm.rows, length - kept * block_);
            expect_same_blocks(warm, cold, prompt);
            EXPECT_TRUE(warm.state == cold.state);
            // With all whole blocks cached there is nothing new to keep.
            const bool keeps = cold.windows_at > hit * block_;
            EXPECT_EQ(warm.windows_at, keeps ? cold.windows_at : 0);
            if (keeps) {
              EXPECT_TRUE(warm.windows == cold.windows);
            }
          }
        }
      }
    }
  }
}

// A session of turns, each of which knows what the one before left, its answer's blocks included.
TEST_F(SessionWindows, GoFromTurnToTurn) {
  for (const ReplayMode replay : {ReplayMode::bounded, ReplayMode::exact}) {
    use(replay, 64, ReplayMode::exact);
    Tokens prompt = prompt_of(6 * block_ + 9);
    Read turn = read(prompt);
    std::vector<Bytes> known = turn.blocks;
    for (int i = 0; i < 6; ++i) {
      SCOPED_TRACE(i);
      const Answer answered = answer(prompt, turn, block_ + 3);
      known.resize(static_cast<size_t>(size(prompt) / block_));
      for (const auto& [index, bytes] : answered.blocks) {
        known.resize(static_cast<size_t>(index) + 1);
        known.back() = bytes;
      }
      prompt.insert(prompt.end(), answered.ids.begin(), answered.ids.end());
      const Tokens tool = prompt_of(2 * block_ + 7 * i, static_cast<uint32_t>(i) + 9);
      prompt.insert(prompt.end(), tool.begin(), tool.end());
      const Bytes windows = turn.windows;
      const auto hit = static_cast<int64_t>(known.size());
      turn = read_with(prompt, {known, hit, &windows});
      EXPECT_EQ(turn.resume, ResumeKind::windows);
      EXPECT_LE(turn.replayed, 2 * block_);
      expect_same(turn, read(prompt), prompt);
      known = turn.blocks;
    }
  }
}

// A replay leaves windows for the next turn as well, and they are true ones.
TEST_F(SessionWindows, AreKeptBehindAReplay) {
  for (const ReplayMode replay : {ReplayMode::bounded, ReplayMode::exact}) {
    use(replay, 512, ReplayMode::exact);
    for (const int64_t length : {20 * block_ + 31, 20 * block_ + 1, 21 * block_}) {
      SCOPED_TRACE(length);
      const Tokens prompt = prompt_of(length);
      const Read cold = read(prompt);
      const Read warm = read(prompt, cold.blocks, 19);
      EXPECT_EQ(warm.resume, ResumeKind::exact);
      EXPECT_GT(warm.replayed, 0);
      EXPECT_LT(warm.rows, length);
      expect_same(warm, cold, prompt);
    }
  }
}

TEST_F(SessionWindows, AreNotTakenWhereAReplayIsShorter) {
  use(ReplayMode::bounded, 512, ReplayMode::exact);
  const Tokens prompt = prompt_of(27 * block_ + 1);
  const Read cold = read(prompt);
  keep_ = false;
  const Position replay =
      resume_start(prefill_->model(), testing::test_options(), 27 * block_, size(prompt));
  ASSERT_GT(replay, 2 * block_);
  for (const int64_t kept : {replay / block_, replay / block_ + 1}) {
    keep_ = true;
    const Read before = read(first(prompt, kept * block_));
    keep_ = false;
    const Read warm = read_with(prompt, {cold.blocks, 27, &before.windows});
    const bool taken = kept * block_ >= replay;
    EXPECT_EQ(warm.resume, taken ? ResumeKind::windows : ResumeKind::exact);
    EXPECT_EQ(warm.replayed, 27 * block_ - (taken ? kept * block_ : replay));
    EXPECT_TRUE(warm.state == cold.state);
  }
  // Blocks behind which the windows lie could not be had.
  const Read before = read(first(prompt, 26 * block_));
  const RequestId id{600};
  ASSERT_TRUE(prefill_->submit({id, prompt, {}, 27}).has_value());
  for (int64_t i = 0; i < 25; ++i) {
    ASSERT_TRUE(prefill_->import_block(id, i, cold.blocks[static_cast<size_t>(i)]));
  }
  EXPECT_EQ(import_error(id, std::move(*parse_handoff(before.state))), "ok");
  ASSERT_TRUE(prefill_->resume(id, 25).has_value());
  const auto events = prefill_->step();
  ASSERT_TRUE(events.has_value());
  EXPECT_EQ(events->front().resume, ResumeKind::exact);
  while (!prefill_->idle()) ASSERT_TRUE(prefill_->step().has_value());
  EXPECT_TRUE(collect(id, 28).state == cold.state);
}

TEST_F(SessionWindows, MakeShortPrefixesUsable) {
  for (const ReplayMode mode : {ReplayMode::bounded, ReplayMode::exact}) {
    use(mode);
    const Position length = 3 * block_;
    EXPECT_EQ(prefill_->usable_blocks(length, 1), 0);
    EXPECT_EQ(prefill_->usable_blocks(length, 1, block_), 1);
    EXPECT_EQ(prefill_->usable_blocks(length, 2, block_), 2);
    EXPECT_EQ(prefill_->usable_blocks(length, 3, 2 * block_), 2);
    // They are of no use behind what can be cached.
    EXPECT_EQ(prefill_->usable_blocks(2 * block_, 2, 2 * block_),
              prefill_->usable_blocks(2 * block_, 2));
  }
}

TEST_F(SessionWindows, GoTogetherWithOthers) {
  for (const int64_t chunk : {int64_t{37}, int64_t{512}}) {
    use(ReplayMode::bounded, chunk, ReplayMode::exact);
    const Tokens a = prompt_of(9 * block_ + 3, 3);
    const Tokens b = prompt_of(6 * block_ + 1, 4);
    const Read before_a = read(first(a, 7 * block_ + 1));
    const Read before_b = read(first(b, 2 * block_));
    const Read cold_a = read(a), cold_b = read(b);
    const RequestId id_a{501}, id_b{502}, id_c{503};
    ASSERT_TRUE(prefill_->submit({id_c, a, {}, 0, true}).has_value());
    ASSERT_TRUE(prefill_->submit({id_a, a, {}, 8, true}).has_value());
    ASSERT_TRUE(prefill_->submit({id_b, b, {}, 2, true}).has_value());
    for (const auto& [id, cold, before, hit] :
         {std::tuple{id_a, &cold_a, &before_a, 8}, std::tuple{id_b, &cold_b, &before_b, 2}}) {
      for (int64_t i = 0; i < hit; ++i) {
        ASSERT_TRUE(prefill_->import_block(id, i, cold->blocks[static_cast<size_t>(i)]));
      }
      ASSERT_EQ(import_error(id, std::move(*parse_handoff(before->windows))), "ok");
      ASSERT_TRUE(prefill_->resume(id, hit).has_value());
    }
    std::map<RequestId, Read> reads;
    while (!prefill_->idle()) {
      const auto events = prefill_->step();
      ASSERT_TRUE(events.has_value());
      for (const PrefillEvent& event : *events) {
        reads[event.id].windows_at = event.windows_at;
      }
    }
    expect_same(collect(id_a, 10, std::move(reads[id_a])), cold_a, a);
    expect_same(collect(id_b, 7, std::move(reads[id_b])), cold_b, b);
    expect_same(collect(id_c, 10, std::move(reads[id_c])), cold_a, a);
  }
}

// They may be taken as soon as an event tells of them, while the prompt's last rows are still to be read.
TEST_F(SessionWindows, CanBeTakenBeforeThePromptIsRead) {
  use(ReplayMode::bounded);
  const Tokens prompt = prompt_of(2 * block_ + 3);
  const Read want = read(prompt);
  const RequestId id{610};
  ASSERT_TRUE(prefill_->submit({id, prompt, {}, 0, true}).has_value());
  EXPECT_FALSE(prefill_->take_windows(id).has_value());
  auto events = prefill_->step();
  ASSERT_TRUE(events.has_value());
  EXPECT_EQ(events->front().computed, 2 * block_);
  EXPECT_EQ(events->front().windows_at, 2 * block_);
  EXPECT_FALSE(events->front().finished);
  EXPECT_TRUE(bytes_of(prefill_->take_windows(id)) == want.windows);
  events = prefill_->step();
  ASSERT_TRUE(events.has_value());
  EXPECT_TRUE(events->front().finished);
  EXPECT_EQ(events->front().windows_at, 0);
  EXPECT_TRUE(bytes_of(prefill_->take_handoff(id)) == want.state);
  prefill_->release(id);
}

// Rows of an image on both sides of the position.
TEST_F(SessionWindows, CarryWhatImagesLeft) {
  use(ReplayMode::bounded, 512, ReplayMode::exact);
  const int64_t hidden = prefill_->model().config.hidden_size;
  ImageRows image{3 * block_ - 5, 11, {}};
  for (int64_t i = 0; i < image.rows * hidden; ++i) {
    image.values.emplace_back(static_cast<float>(i % 13) * 0.125F - 0.75F);
  }
  const Tokens prompt = prompt_of(5 * block_ + 2);
  const Read text = read(prompt);
  images_ = {image};
  const Read before = read(first(prompt, 4 * block_ - 1));
  ASSERT_EQ(before.windows_at, 3 * block_);
  const Read cold = read(prompt);
  EXPECT_FALSE(cold.state == text.state);
  expect_same(read_with(prompt, {cold.blocks, 4, &before.windows}), cold, prompt);
}

TEST_F(SessionWindows, OfAnotherModelOrSettingAreRefused) {
  use(ReplayMode::exact);
  const Tokens prompt = prompt_of(14 * block_ + 2);
  const Read other = read(first(prompt, 12 * block_ + 1));
  use(ReplayMode::bounded, 512, ReplayMode::exact);
  const Read cold = read(prompt);
  const Read before = read(first(prompt, 12 * block_ + 1));
  const RequestId id{700};
  ASSERT_TRUE(prefill_->submit({id, prompt, {}, 12}).has_value());
  const auto good = [&] { return std::move(*parse_handoff(before.windows)); };
  // The decoder's replay would lack rows, or have too many.
  EXPECT_THAT(import_error(id, std::move(*parse_handoff(other.windows))),
              HasSubstr("boundary_rows: expected"));
  EXPECT_THAT(import_error(id, std::move(*parse_handoff(before.state))), HasSubstr("multiple of"));
  EXPECT_THAT(import_error(id, std::move(*parse_handoff(cold.windows))), HasSubstr("at most"));
  for (const Position length : {Position{0}, -block_, 13 * block_}) {
    Handoff state = good();
    state.length = length;
    EXPECT_THAT(import_error(id, std::move(state)), HasSubstr("expected a multiple of")) << length;
  }
  Handoff state = good();
  state.windows = Buffer();
  EXPECT_THAT(import_error(id, std::move(state)), HasSubstr("windows: expected"));
  state = good();
  state.boundary_pre = std::move(*Buffer::zeroed(Device{}, 8));
  EXPECT_THAT(import_error(id, std::move(state)), HasSubstr("boundary_pre: expected"));
  state = good();
  state.window_rows = -1;
  EXPECT_THAT(import_error(id, std::move(state)), HasSubstr("window_rows: expected"));
  EXPECT_THAT(import_error(RequestId{701}, good()), HasSubstr("request 701"));
  // And the prompt goes on without.
  for (int64_t i = 0; i < 12; ++i) {
    ASSERT_TRUE(prefill_->import_block(id, i, cold.blocks[static_cast<size_t>(i)]));
  }
  ASSERT_TRUE(prefill_->resume(id, 12).has_value());
  EXPECT_THAT(import_error(id, good()), HasSubstr("does not wait"));
  while (!prefill_->idle()) ASSERT_TRUE(prefill_->step().has_value());
  EXPECT_TRUE(collect(id, 15).state == cold.state);
}

// Of the right sizes, with other contents: answered with something, and nobody else's rows are touched.
TEST_F(SessionWindows, OfAnyBytesAreSafe) {
  use(ReplayMode::bounded, 512, ReplayMode::exact);
  const Tokens prompt = prompt_of(4 * block_ + 2);
  const Read cold = read(prompt);
  for (const int byte : {0, 0x7F, 0xFF}) {
    Handoff state = std::move(*parse_handoff(read(first(prompt, 3 * block_)).windows));
    for (Buffer* part : {&state.windows, &state.boundary_x, &state.boundary_pre}) {
      std::memset(part->data(), byte, static_cast<size_t>(part->bytes()));
    }
    const Bytes bytes = bytes_of(Result<Handoff>(std::move(state)));
    const Read warm = read_with(prompt, {cold.blocks, 3, &bytes});
    EXPECT_EQ(warm.resume, ResumeKind::windows);
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(warm.blocks[i] == cold.blocks[i]);
    EXPECT_FALSE(warm.state == cold.state);
    EXPECT_TRUE(read(prompt).state == cold.state);
  }
}

}  // namespace
}  // namespace cedar::engine
