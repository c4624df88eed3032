// Every message between processes as bytes and back, and as bytes that nobody has written.

#include "actors/messages.h"

#include <gtest/gtest.h>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/binary_deserializer.hpp>
#include <caf/binary_serializer.hpp>
#include <caf/message.hpp>

#include <numeric>
#include <random>

#include "actors/message_types.h"

namespace cedar::actors {
namespace {

class MessagesTest : public testing::Test {
 protected:
  struct Config : caf::actor_system_config {
    Config() { actors::add_message_types(*this); }
  };
  Config config_;
  caf::actor_system system_{config_};

  template <class T>
  std::vector<char> bytes_of(const T& value) {
    std::vector<char> bytes;
    caf::binary_serializer sink(system_, bytes);
    EXPECT_FALSE(sink(const_cast<T&>(value)));
    return bytes;
  }
  /// As between two nodes: by the registered name of the type.
  template <class T>
  T travelled(const T& value) {
    caf::message message = caf::make_message(value);
    const auto bytes = bytes_of(message);
    caf::message arrived;
    caf::binary_deserializer source(system_, bytes);
    EXPECT_FALSE(source(arrived));
    EXPECT_TRUE(arrived.match_elements<T>());
    return arrived.match_elements<T>() ? arrived.get_as<T>(0) : T{};
  }
  /// Writing it again gives the same bytes, so nothing was lost.
  template <class T>
  T expect_round_trip(const T& value) {
    const T copy = travelled(value);
    EXPECT_EQ(bytes_of(copy), bytes_of(value));
    return copy;
  }

  static GenerateRequest request() {
    GenerateRequest request;
    request.decode.id = RequestId{7};
    request.decode.prompt = {5, 6, 7, 128000};
    request.decode.sampling.temperature = 0.5F;
    request.decode.sampling.seed = ~uint64_t{0};
    request.decode.sampling.logit_bias = {{4, -1.5F}, {9, 100.0F}};
    request.decode.sampling.logprobs = 3;
    request.decode.max_new_tokens = int64_t{1} << 40;
    request.decode.stop_ids = {1, 2};
    request.decode.ignore_eos = true;
    request.decode.constraint = "{\"json\": true}";
    request.images.push_back({2, 1, {Bf16(1.5F), Bf16(-2.0F)}});
    request.deadline = std::chrono::milliseconds(1234);
    request.priority = -3;
    request.cache_salt = std::string("a\0b", 3);
    return request;
  }
  static Offer offer() {
    Offer offer;
    offer.descriptor.resize(300);
    std::iota(offer.descriptor.begin(), offer.descriptor.end(), 0);
    offer.owner = {"10.0.0.7", 4711, 3, uint64_t{1} << 60};
    return offer;
  }
};

TEST_F(MessagesTest, ARequestArrivesWhole) {
  const auto sent = std::make_shared<const GenerateRequest>(request());
  ReserveRoom message;
  message.id = HandoffId{~uint64_t{0}};
  message.request = {sent};
  message.encoder = offer().owner;
  message.remaining = std::chrono::milliseconds(77);
  const ReserveRoom copy = expect_round_trip(message);
  ASSERT_NE(copy.request.value, sent);
  const GenerateRequest& arrived = *copy.request;
  EXPECT_EQ(arrived.decode.prompt, sent->decode.prompt);
  EXPECT_EQ(arrived.decode.sampling.logit_bias, sent->decode.sampling.logit_bias);
  EXPECT_EQ(arrived.decode.sampling.seed, sent->decode.sampling.seed);
  EXPECT_EQ(arrived.decode.max_new_tokens, sent->decode.max_new_tokens);
  EXPECT_EQ(arrived.decode.constraint, sent->decode.constraint);
  ASSERT_EQ(arrived.images.size(), 1U);
  EXPECT_EQ(arrived.images[0].values, sent->images[0].values);
  EXPECT_EQ(arrived.deadline, sent->deadline);
  EXPECT_EQ(arrived.cache_salt, sent->cache_salt);
  EXPECT_EQ(copy.encoder, offer().owner);
}

TEST_F(MessagesTest, WithinAProcessARequestIsNotCopied) {
  const auto sent = std::make_shared<const GenerateRequest>(request());
  const caf::message message =
      caf::make_message(BeginPrefill{{HandoffId{1}, 1}, {sent}, {}, std::chrono::milliseconds(1)});
  EXPECT_EQ(message.get_as<BeginPrefill>(0).request.value, sent);
}

TEST_F(MessagesTest, TokensArriveWithTheirProbabilitiesAndErrors) {
  engine::TokenEvent plain;
  plain.id = RequestId{3};
  plain.index = 8;
  plain.token.token = 42;
  engine::TokenEvent rich = plain;
  rich.token.logprob = -0.25F;
  rich.token.top = {{42, -0.25F}, {7, -3.0F}};
  rich.finish = engine::FinishReason::length;
  engine::TokenEvent failed = plain;
  failed.finish = engine::FinishReason::failed;
  failed.error = make_error(Errc::internal, "a NaN");
  const TokenBatch copy = expect_round_trip(TokenBatch{HandoffId{5}, {plain, rich, failed}});
  ASSERT_EQ(copy.tokens.size(), 3U);
  EXPECT_FALSE(copy.tokens[0].token.logprob);
  EXPECT_EQ(copy.tokens[1].token.logprob, -0.25F);
  EXPECT_EQ(copy.tokens[1].finish, engine::FinishReason::length);
  ASSERT_TRUE(copy.tokens[2].error);
  EXPECT_EQ(copy.tokens[2].error->message(), "internal: a NaN");
}

TEST_F(MessagesTest, TheOthersToo) {
  const Attempt attempt{HandoffId{9}, 2};
  const PrefillProgress progress{attempt, 512, true, 3, offer(), offer(), 2, offer()};
  const PrefillProgress copy = expect_round_trip(progress);
  EXPECT_EQ(copy.blocks.descriptor, progress.blocks.descriptor);
  EXPECT_EQ(copy.state.owner, progress.state.owner);
  EXPECT_TRUE(expect_round_trip(PrefillProgress{}).blocks.empty());
  expect_round_trip(ReplayBegun{HandoffId{1}});
  EXPECT_EQ(copy.for_cache.descriptor, progress.for_cache.descriptor);
  EXPECT_EQ(copy.cached_blocks, 2);
  expect_round_trip(RoomReserved{HandoffId{1}});
  expect_round_trip(BlockWritten{HandoffId{1}, 7, offer()});
  expect_round_trip(PullFailed{attempt, make_error(Errc::unavailable, "gone")});
  expect_round_trip(StageFailed{attempt, make_error(Errc::context_too_long, "9 of 8")});
  expect_round_trip(ImportBlocks{attempt, 4, offer()});
  expect_round_trip(TakeOver{attempt, offer()});
  expect_round_trip(CancelWork{attempt});
  expect_round_trip(ReleaseLease{LeaseId{4}});
  expect_round_trip(CacheUsage{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  model::BlockKey key;
  std::iota(key.digest.begin(), key.digest.end(), uint8_t{100});
  EXPECT_EQ(expect_round_trip(LookupPrefix{{key, {}}, std::chrono::milliseconds(9)}).keys[0], key);
  expect_round_trip(PrefixLease{LeaseId{3}, 2, offer(), offer(), 1, 128, offer()});
  EXPECT_EQ(expect_round_trip(StoreWindows{key, 128, offer()}).key, key);
  EXPECT_EQ(expect_round_trip(StoreBlocks{4, {{}, key}, offer()}).chain[1], key);
}

TEST_F(MessagesTest, AnUnknownErrorOfANewerPeerIsInternal) {
  Error error = make_error(Errc::internal, "from the future");
  auto bytes = bytes_of(error);
  bytes[0] = char(200);
  caf::binary_deserializer source(system_, bytes);
  Error copy;
  EXPECT_FALSE(source(copy));
  EXPECT_EQ(copy.code, Errc::internal);
}

/// What a peer sends wrongly is an error here, never more.
TEST_F(MessagesTest, DamagedBytesAreErrorsOrOtherValues) {
  std::mt19937 random(1);
  BeginPrefill begin{{HandoffId{1}, 1},
                     {std::make_shared<const GenerateRequest>(request())},
                     {},
                     std::chrono::milliseconds(1)};
  const auto whole = bytes_of(begin);
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::vector<char> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    caf::binary_deserializer source(system_, cut);
    BeginPrefill copy;
    EXPECT_TRUE(source(copy)) << length;
  }
  const auto tokens = bytes_of(TokenBatch{HandoffId{5}, {engine::TokenEvent{}}});
  for (int i = 0; i < 2000; ++i) {
    auto damaged = tokens;
    damaged[random() % 8 + damaged.size() - 8] = static_cast<char>(random());
    caf::binary_deserializer source(system_, damaged);
    TokenBatch copy;
    if (source(copy)) continue;
    EXPECT_LE(copy.tokens.at(0).finish, engine::FinishReason::failed);
  }
}

}  // namespace
}  // namespace cedar::actors
