// Prompts that begin like others: what was computed once is fetched from the cache, on whatever stages, and the answer is the
// one that would have been written without.

#include <caf/scoped_actor.hpp>

#include <cstring>

#include "actors/kv_cache.h"
#include "actors/offers.h"
#include "actors/prompt_keys.h"
#include "actors/system.h"
#include "tests/actors/real_engines_fixture.h"

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;
using Tokens = std::vector<TokenId>;

GenerateRequest next_turn(const GenerateRequest& turn, const Tokens& answer, size_t more) {
  GenerateRequest next = turn;
  next.decode.prompt.insert(next.decode.prompt.end(), answer.begin(), answer.end());
  for (size_t i = 0; i < more; ++i) next.decode.prompt.push_back(static_cast<TokenId>(20 + i));
  return next;
}

class PrefixReuseTest : public RemoteEnginesTest {
 protected:
  PrefixReuseTest() { options_.replay = engine::ReplayMode::exact; }  // of new decoders

  void add_cache(Node& node, CacheOptions options = {.bytes = 4 << 20}) {
    node.cache = system_->spawn<KvCache, caf::detached>(
        KvCacheSetup{options, testing::mini_model()->layout.block_bytes, node.plane, node.board});
    cache_ = {node.cache, "mini", block()};
  }
  static int64_t block() { return testing::mini_model()->layout.block_tokens; }
  CacheUsage usage() {
    CacheUsage result;
    caf::scoped_actor self(*system_);
    self->request(cache_.cache, 5s, UsageAtom::value)
        .receive([&](const CacheUsage& u) { result = u; }, [](const caf::error&) { FAIL(); });
    return result;
  }
  /// Once every request has ended nothing is pinned, and no lease is left anywhere.
  void expect_cache_level() {
    expect_level();
    EXPECT_TRUE(test::eventually([&] { return usage().leases == 0; }));
    EXPECT_EQ(usage().pinned_blocks, 0);
    for (const auto& node : nodes_) {
      EXPECT_TRUE(
          test::eventually([&] { return node->transport().stats().leases_live == 0; }, 20s));
    }
  }
  Sink run(const Node& encoder, const Node& decoder, const GenerateRequest& request) {
    const auto sink = submit(encoder, decoder, request);
    const auto end = sink->wait_end(30s);
    EXPECT_TRUE(end);
    EXPECT_TRUE(!end->error) << end->error->message();
    return sink;
  }
  /// All 18 cached blocks are used, and their windows computed.
  void expect_replay(const Node& encoder, const Node& decoder, const GenerateRequest& request) {
    const auto sink = run(encoder, decoder, request);
    EXPECT_EQ(sink->prompt_read().resume, ResumeKind::exact);
    EXPECT_EQ(sink->prompt_read().cached_tokens, 18 * block());
    EXPECT_GT(sink->prompt_read().replayed_tokens, 0);
    EXPECT_EQ(sink->tokens(), one_process(request));
  }
  int64_t whole_blocks(const GenerateRequest& request) {
    return static_cast<int64_t>(request.decode.prompt.size()) / block();
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, PrefixReuseTest, ::testing::ValuesIn(handoff_backends()),
                         [](const auto& backend) { return backend.param.name; });

TEST_P(PrefixReuseTest, TheNextTurnHitsPromptAndAnswerOnOtherStages) {
  Node& e1 = add_real_encoder();
  Node& e2 = add_real_encoder();
  Node& d1 = add_real_decoder();
  Node& d2 = add_real_decoder();
  add_cache(add_node());
  GenerateRequest first = prompt_of(static_cast<size_t>(18 * block() + 10));
  first.decode.max_new_tokens = 2 * block() + 8;
  const auto told = run(e1, d1, first);
  EXPECT_EQ(told->cached_tokens(), 0);
  EXPECT_EQ(told->tokens(), one_process(first));
  // 18 blocks of the prompt, and two that the answer completed; its last token has no rows yet.
  ASSERT_TRUE(test::eventually([&] { return usage().stored_blocks == 20; }));
  expect_cache_level();

  GenerateRequest second = next_turn(first, told->tokens(), 9);
  second.decode.max_new_tokens = 12;
  const auto answer = run(e2, d2, second);
  EXPECT_EQ(answer->cached_tokens(), 20 * block());
  EXPECT_EQ(answer->tokens(), one_process(second));
  EXPECT_EQ(answer->computed().front(), 0);
  EXPECT_GE(answer->computed()[1], 20 * block());
  // The decoder has got the cached blocks from the cache, not from the encoder.
  EXPECT_EQ(usage().hit_blocks, 20);
  expect_cache_level();
}

// One block less, exactly whole blocks, one token more.
TEST_P(PrefixReuseTest, AtBlockEdgesTheAnswersStayTheSame) {
  Node& encoder = add_real_encoder();
  Node& decoder = add_real_decoder();
  add_cache(add_node());
  const GenerateRequest longest = prompt_of(static_cast<size_t>(20 * block() + 1));
  for (const int64_t length : {20 * block() - 1, 20 * block(), 20 * block() + 1}) {
    SCOPED_TRACE(length);
    GenerateRequest asked = longest;
    asked.decode.prompt.resize(static_cast<size_t>(length));
    const Tokens expected = one_process(asked);
    for (int time = 0; time < 2; ++time) {
      const auto sink = run(encoder, decoder, asked);
      EXPECT_EQ(sink->tokens(), expected);
      ASSERT_TRUE(test::eventually([&] { return usage().blocks >= whole_blocks(asked); }));
      if (time == 0) continue;
      EXPECT_EQ(sink->cached_tokens(), (length - 1) / block() * block());
    }
  }
  expect_cache_level();
}

TEST_P(PrefixReuseTest, TenantsDoNotShare) {
  Node& encoder = add_real_encoder();
  Node& decoder = add_real_decoder();
  add_cache(add_node());
  GenerateRequest asked = prompt_of(static_cast<size_t>(19 * block()));
  asked.cache_salt = "one";
  run(encoder, decoder, asked);
  ASSERT_TRUE(test::eventually([&] { return usage().stored_blocks == 19; }));
  GenerateRequest other = asked;
  other.cache_salt = "other";
  EXPECT_EQ(run(encoder, decoder, other)->cached_tokens(), 0);
  EXPECT_EQ(run(encoder, decoder, asked)->cached_tokens(), 18 * block());
  // Nor do images that differ, at the same tokens; nor other models.
  cache_.fingerprint = "another model";
  EXPECT_EQ(run(encoder, decoder, asked)->cached_tokens(), 0);
  expect_cache_level();
}

TEST_P(PrefixReuseTest, ACacheThatCannotBeReachedIsDoneWithout) {
  Node& encoder = add_real_encoder();
  Node& decoder = add_real_decoder();
  Node& cache = add_node();
  add_cache(cache);
  const GenerateRequest asked = prompt_of(static_cast<size_t>(19 * block()));
  const Tokens expected = one_process(asked);
  run(encoder, decoder, asked);
  ASSERT_TRUE(test::eventually([&] { return usage().stored_blocks == 19; }));
  // It answers, but its data plane is gone: the encoder computes.
  cache.faults().cut = true;
  const auto sink = run(encoder, decoder, asked);
  EXPECT_EQ(sink->tokens(), expected);
  EXPECT_EQ(sink->cached_tokens(), 0);
  EXPECT_TRUE(test::eventually([&] { return usage().leases == 0; }));
  // It is gone altogether.
  end(cache.cache);
  cache.cache = KvCacheActor{};
  EXPECT_EQ(run(encoder, decoder, asked)->tokens(), expected);
  expect_level();
}

// The encoder has what was cached, the decoder cannot get it.
TEST_P(PrefixReuseTest, ADecoderThatCannotReachTheCacheGetsTheBlocksComputed) {
  Node& beside = add_real_encoder();  // reads the cache in place
  Node& other = add_real_encoder();
  Node& decoder = add_real_decoder();
  add_cache(beside);
  const GenerateRequest asked = prompt_of(static_cast<size_t>(19 * block()));
  run(beside, decoder, asked);
  ASSERT_TRUE(test::eventually([&] { return usage().stored_blocks == 19; }));
  may_replace_with_encoder(other);
  max_replacements_ = 0;  // a cache is none of the stages that may be lost
  beside.faults().cut = true;
  const auto sink = run(beside, decoder, asked);
  EXPECT_EQ(sink->tokens(), one_process(asked));
  EXPECT_EQ(routes_->encoders_replaced, 1);
  EXPECT_TRUE(test::eventually([&] { return usage().leases == 0; }));
}

TEST_P(PrefixReuseTest, AnotherDecoderResumesFromTheCache) {
  Node& encoder = add_real_encoder();
  Node& first = add_real_decoder();
  Node& second = add_real_decoder();
  add_cache(add_node());
  may_replace_with_encoder(encoder);
  may_replace_with_decoder(second);
  GenerateRequest asked = prompt_of(static_cast<size_t>(17 * block() + 3));
  asked.decode.max_new_tokens = 200;
  const auto sink = submit(encoder, first, asked);
  ASSERT_TRUE(sink->wait_tokens(100));
  end(first.decoder);
  first.decoder = DecoderStageActor{};
  const auto finished = sink->wait_end(30s);
  ASSERT_TRUE(finished);
  ASSERT_FALSE(finished->error) << finished->error->message();
  EXPECT_EQ(sink->tokens(), one_process(asked));
  EXPECT_TRUE(routes_->decoders_replaced == 0 || usage().hit_blocks >= 17);
}

// Field report B36 across stages: with bounded replay the second and the third answer are equal.
TEST_P(PrefixReuseTest, BoundedReplayGivesOneAnswerForOneHit) {
  options_.replay = options_.resume = engine::ReplayMode::bounded;
  Node& e1 = add_real_encoder();
  Node& e2 = add_real_encoder();
  Node& decoder = add_real_decoder();
  add_cache(add_node(), {.bytes = 4 << 20, .window_bytes = 0});
  GenerateRequest asked = prompt_of(static_cast<size_t>(10 * block() + 5));
  asked.decode.max_new_tokens = 20;
  asked.decode.sampling.logprobs = 0;
  run(e1, decoder, asked);
  ASSERT_TRUE(test::eventually([&] { return usage().stored_blocks == 10; }));
  const auto second = run(e1, decoder, asked);
  const auto third = run(e2, decoder, asked);
  EXPECT_EQ(second->cached_tokens(), 10 * block());
  EXPECT_EQ(third->cached_tokens(), 10 * block());
  EXPECT_EQ(third->tokens(), second->tokens());
  EXPECT_EQ(third->logprobs(), second->logprobs());
  expect_cache_level();
}

// Windows of the last turn: nothing is computed again, on whatever encoder, however short the prompt.
TEST_P(PrefixReuseTest, TheNextTurnTakesTheWindowsOver) {
  Node& e1 = add_real_encoder();
  Node& e2 = add_real_encoder();
  Node& decoder = add_real_decoder();
  add_cache(add_node());
  for (const int64_t blocks : {3, 18}) {
    SCOPED_TRACE(blocks);
    GenerateRequest turn = prompt_of(static_cast<size_t>(blocks * block() + 10));
    turn.decode.sampling.logprobs = 0;
    const int64_t kept = usage().windows;
    auto told = run(e1, decoder, turn);
    EXPECT_EQ(told->prompt_read().resume, ResumeKind::none);
    ASSERT_TRUE(test::eventually([&] { return usage().windows == kept + 1; }));
    // Turn after turn; what the last answer completed is no part of its windows.
    for (const size_t more : {size_t{5}, static_cast<size_t>(2 * block()), size_t{3}}) {
      const int64_t before = whole_blocks(turn);
      turn.decode.max_new_tokens = 6;
      turn = next_turn(turn, told->tokens(), more);
      const int64_t found = (static_cast<int64_t>(turn.decode.prompt.size() - more) - 1) / block();
      ASSERT_TRUE(test::eventually([&] { return usage().blocks >= found; }));
      const int64_t windows = usage().windows;
      told = run(e2, decoder, turn);
      const PromptReadEvent read = told->prompt_read();
      EXPECT_EQ(read.resume, ResumeKind::windows);
      EXPECT_EQ(read.cached_tokens, found * block());
      EXPECT_EQ(read.replayed_tokens, (found - before) * block());
      EXPECT_EQ(told->tokens(), one_process(turn));
      if (whole_blocks(turn) > found) {
        ASSERT_TRUE(test::eventually([&] { return usage().windows > windows; }));
      }
    }
  }
  expect_cache_level();
}

TEST_P(PrefixReuseTest, WindowsThatAreGoneAreDoneWithout) {
  Node& encoder = add_real_encoder();
  Node& decoder = add_real_decoder();
  add_cache(add_node(), {.bytes = 4 << 20, .window_ttl = 1s});
  const GenerateRequest first = prompt_of(static_cast<size_t>(18 * block() + 10));
  const auto told = run(encoder, decoder, first);
  ASSERT_TRUE(test::eventually([&] { return usage().blocks == 18; }));
  ASSERT_TRUE(test::eventually([&] { return usage().windows_expired == 1; }, 30s));
  expect_replay(encoder, decoder, next_turn(first, told->tokens(), 5));
  EXPECT_EQ(usage().window_hits, 0);
  expect_cache_level();
}

// Bytes that are no state, under the right key.
TEST_P(PrefixReuseTest, WindowsThatAreNoneAreDoneWithout) {
  Node& encoder = add_real_encoder();
  Node& decoder = add_real_decoder();
  Node& cache = add_node();
  add_cache(cache);
  const GenerateRequest first = prompt_of(static_cast<size_t>(18 * block() + 10));
  const transport::Region region = *cache.transport().allocate(4096);
  std::memset(region.memory.data, 0x5a, 4096);
  transport::OfferRequest offered;
  offered.region = region.id;
  offered.ranges.push_back({0, 4000, {}});
  offered.lease_deadline = transport::Clock::now() + 20s;
  const auto descriptor = cache.transport().offer(std::move(offered));
  ASSERT_TRUE(descriptor.has_value());
  const PromptKeys keys("mini", first, block());
  caf::anon_send(cache_.cache, StoreWindows{keys.of(17, 18).front(), 18 * block(),
                                            make_offer(*descriptor, cache.plane.endpoint)});
  const auto told = run(encoder, decoder, first);
  ASSERT_TRUE(test::eventually([&] { return usage().blocks == 18; }));
  ASSERT_EQ(usage().windows, 1);
  expect_replay(encoder, decoder, next_turn(first, told->tokens(), 5));
  EXPECT_EQ(usage().window_hits, 1);
  expect_cache_level();
}

// In one process, with the actors as `cedar serve` starts them.
TEST(PrefixReuseInOneProcess, ManyTurnsAreEqualToThoseWithoutACache) {
  SystemOptions options;
  options.engine = testing::test_options();
  options.engine.replay = engine::ReplayMode::exact;
  options.cache.bytes = 4 << 20;
  auto with = System::start(testing::mini_model(), options);
  options.cache.bytes = 0;
  auto without = System::start(testing::mini_model(), options);
  ASSERT_TRUE(with.has_value() && without.has_value());
  const auto ask = [](System& system, const GenerateRequest& request) {
    auto sink = std::make_shared<test::CollectingSink>();
    EXPECT_TRUE(test::eventually([&] { return system.client().stats().ready; }));
    system.client().submit(request, sink);
    const auto end = sink->wait_end(30s);
    EXPECT_TRUE(end && !end->error);
    return sink;
  };
  GenerateRequest turn;
  turn.decode.prompt = {0, 9, 8, 7};
  for (TokenId id = 40; id < 440; ++id) turn.decode.prompt.push_back(id);
  turn.decode.max_new_tokens = 70;
  turn.decode.sampling.temperature = 0;
  turn.decode.sampling.logprobs = 0;
  turn.decode.ignore_eos = true;
  int64_t read_last = 0;
  for (int i = 0; i < 6; ++i) {
    SCOPED_TRACE(i);
    const auto plain = ask(**without, turn);
    const auto cached = ask(**with, turn);
    EXPECT_EQ(plain->cached_tokens(), 0);
    EXPECT_EQ(cached->tokens(), plain->tokens());
    EXPECT_EQ(cached->logprobs(), plain->logprobs());
    // All but the last token of the last turn, in whole blocks of 36.
    EXPECT_EQ(cached->cached_tokens(), read_last / 36 * 36) << read_last;
    EXPECT_EQ(cached->prompt_read().resume, i > 0 ? ResumeKind::windows : ResumeKind::none);
    read_last = static_cast<int64_t>(turn.decode.prompt.size() + plain->tokens().size()) - 1;
    ASSERT_TRUE(
        test::eventually([&] { return (*with)->client().stats().cache_blocks == read_last / 36; }));
    turn = next_turn(turn, plain->tokens(), 20);
  }
  const Stats stats = (*with)->client().stats();
  EXPECT_EQ(stats.encoder_requests, 0);
  EXPECT_EQ(stats.decoder_sequences, 0);
}

}  // namespace
}  // namespace cedar::actors
