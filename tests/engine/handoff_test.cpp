// The state that a prefill hands over, as bytes and back.

#include "engine/handoff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "engine/decode_engine.h"
#include "engine/prefill_engine.h"
#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

std::vector<TokenId> prompt_of(int64_t length) {
  std::vector<TokenId> prompt(static_cast<size_t>(length));
  std::iota(prompt.begin(), prompt.end(), 3);
  return prompt;
}

struct Read {
  std::vector<std::vector<std::byte>> blocks;
  Handoff handoff;
};

Read read_prompt(PrefillEngine& engine, const std::vector<TokenId>& prompt) {
  const RequestId id{1};
  EXPECT_TRUE(engine.submit({id, prompt, {}}).has_value());
  int64_t ready = 0;
  while (!engine.idle()) {
    const auto events = engine.step();
    for (const PrefillEvent& event : *events) ready = event.blocks_ready;
  }
  Read read;
  for (int64_t i = 0; i < ready; ++i) {
    const auto bytes = engine.block(id, i);
    read.blocks.emplace_back(bytes.begin(), bytes.end());
  }
  read.handoff = std::move(*engine.take_handoff(id));
  engine.release(id);
  return read;
}

std::vector<std::byte> bytes_of(const Handoff& handoff) {
  std::vector<std::byte> bytes(static_cast<size_t>(serialised_bytes(handoff)));
  serialise(handoff, bytes);
  return bytes;
}

std::unique_ptr<PrefillEngine> prefill_engine(const std::shared_ptr<const LoadedModel>& model,
                                              const EngineOptions& options) {
  auto engine = PrefillEngine::create(model, local_engram_source(model), options);
  EXPECT_TRUE(engine.has_value()) << engine.error().message();
  return std::move(*engine);
}

// Odd and even lengths, around the window, around a block (field report B22: an odd prompt leaves an open group).
TEST(Handoff, GoesThroughBytesUnchanged) {
  for (const ReplayMode mode : {ReplayMode::bounded, ReplayMode::exact}) {
    EngineOptions options = testing::test_options();
    options.replay = mode;
    const auto engine = prefill_engine(testing::mini_model(), options);
    const int64_t window = engine->model().config.sliding_window;
    for (const int64_t length :
         {int64_t{1}, int64_t{2}, window - 1, window, window + 1, 2 * window, 5 * window + 3}) {
      SCOPED_TRACE(length);
      const Handoff handoff = read_prompt(*engine, prompt_of(length)).handoff;
      const auto bytes = bytes_of(handoff);
      EXPECT_LE(static_cast<int64_t>(bytes.size()), engine->max_handoff_bytes());
      const auto copy = parse_handoff(bytes);
      ASSERT_TRUE(copy.has_value()) << copy.error().message();
      EXPECT_EQ(bytes_of(*copy), bytes);
      EXPECT_EQ(copy->length, length);
      EXPECT_EQ(copy->pending.bytes() > 0, length % 2 == 1);
      EXPECT_TRUE(check_handoff(engine->model(), mode, length, *copy).has_value());
      EXPECT_FALSE(check_handoff(engine->model(), mode, length + 1, *copy).has_value());
    }
  }
}

TEST(Handoff, WhatDoesNotFitTheModelIsNamed) {
  const auto engine = prefill_engine(testing::mini_model(), testing::test_options());
  const int64_t length = 2 * engine->model().config.sliding_window + 1;
  const auto check = [&](const Handoff& handoff) {
    const Status status = check_handoff(engine->model(), ReplayMode::bounded, length, handoff);
    return status ? std::string("ok") : status.error().message();
  };
  Handoff good = read_prompt(*engine, prompt_of(length)).handoff;
  EXPECT_EQ(check(good), "ok");
  Handoff bad = std::move(*parse_handoff(bytes_of(good)));
  bad.boundary_rows -= 1;
  EXPECT_NE(check(bad).find("boundary_rows: expected"), std::string::npos) << check(bad);
  bad = std::move(*parse_handoff(bytes_of(good)));
  bad.pending = Buffer();
  EXPECT_NE(check(bad).find("pending: expected"), std::string::npos) << check(bad);
  bad = std::move(*parse_handoff(bytes_of(good)));
  bad.windows = std::move(*Buffer::allocate(Device{}, good.windows.bytes() - 1));
  EXPECT_NE(check(bad).find("windows: expected"), std::string::npos) << check(bad);
}

/// What a decoder must survive: any bytes, and a hand-off of another prompt, another setting, another model.
TEST(Handoff, ADecoderRefusesWhatIsNotItsHandoff) {
  const auto model = testing::mini_model();
  const auto encoder = prefill_engine(model, testing::test_options());
  auto decoder = DecodeEngine::create(model, local_engram_source(model), testing::test_options());
  ASSERT_TRUE(decoder.has_value());
  const auto prompt = prompt_of(model->config.sliding_window + 1);
  const Read read = read_prompt(*encoder, prompt);
  DecodeRequest request;
  request.id = RequestId{5};
  request.prompt = prompt;
  ASSERT_TRUE((*decoder)->reserve(request).has_value());
  for (size_t i = 0; i < read.blocks.size(); ++i) {
    ASSERT_TRUE(
        (*decoder)->import_block(request.id, static_cast<int64_t>(i), read.blocks[i]).has_value());
  }
  Handoff other = read_prompt(*encoder, prompt_of(3)).handoff;
  const Status refused = (*decoder)->start(request.id, std::move(other));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Errc::invalid_argument);
  EXPECT_TRUE(
      (*decoder)->start(request.id, std::move(*parse_handoff(bytes_of(read.handoff)))).has_value());
}

TEST(Handoff, AnyBytesAreSafeInput) {
  const auto engine = prefill_engine(testing::mini_model(), testing::test_options());
  const auto whole = bytes_of(read_prompt(*engine, prompt_of(5)).handoff);
  std::mt19937 random(7);
  for (size_t length = 0; length < 200; ++length) {
    EXPECT_FALSE(parse_handoff(std::span(whole).first(length)).has_value()) << length;
  }
  auto longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(parse_handoff(longer).has_value());
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    auto damaged = whole;
    const size_t at = random() % 64;
    damaged[at] = static_cast<std::byte>(random());
    if (i % 2 == 1) damaged[random() % 64] = std::byte{0xFF};
    const auto parsed = parse_handoff(damaged);
    if (!parsed) continue;
    ++accepted;
    EXPECT_EQ(serialised_bytes(*parsed), static_cast<int64_t>(damaged.size()));
    (void)check_handoff(engine->model(), ReplayMode::bounded, 5, *parsed);
  }
  EXPECT_GT(accepted, 0);
}

/// Buffers of its own, counted.
class CountingSource final : public HostMemorySource {
 public:
  Result<Buffer> allocate(int64_t bytes) override {
    CEDAR_TRY(Buffer buffer, Buffer::zeroed(Device{}, bytes));
    begin = buffer.data();
    end = begin + bytes;
    const auto owner = std::make_shared<Buffer>(std::move(buffer));
    return Buffer::adopt(begin, bytes, owner);
  }
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
};

TEST(Handoff, BlocksLieInTheCallersMemory) {
  EngineOptions options = testing::test_options();
  const auto source = std::make_shared<CountingSource>();
  options.block_memory = source;
  const auto engine = prefill_engine(testing::mini_model(), options);
  const RequestId id{1};
  ASSERT_TRUE(engine->submit({id, prompt_of(300), {}}).has_value());
  while (!engine->idle()) ASSERT_TRUE(engine->step().has_value());
  const auto block = engine->block(id, 1);
  EXPECT_GE(block.data(), source->begin);
  EXPECT_LE(block.data() + block.size(), source->end);
  const Read own =
      read_prompt(*prefill_engine(testing::mini_model(), testing::test_options()), prompt_of(300));
  EXPECT_TRUE(std::equal(block.begin(), block.end(), own.blocks[1].begin(), own.blocks[1].end()));
}

}  // namespace
}  // namespace cedar::engine
