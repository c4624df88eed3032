// The load generator on the real gateway: nothing may be lost, and who does not read holds up nobody. And that it
// would see what is lost.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/serve/synthetic_report.h"
#include "bench/serve/synthetic_run.h"
#include "bench/serve/url_run.h"

namespace cedar::bench {
namespace {

TokenScript demo_script() {
  const auto tokenizer =
      model::Tokenizer::load(std::string(CEDAR_SOURCE_DIR) + "/config/demo/tokenizer.json");
  EXPECT_TRUE(tokenizer) << tokenizer.error().message();
  auto script = TokenScript::create(**tokenizer);
  EXPECT_TRUE(script) << script.error().message();
  return *script;
}

std::string words(const TokenScript& script, uint64_t stream, const std::vector<int64_t>& indices) {
  std::string text;
  for (const int64_t i : indices) text += script.text(stream, i);
  return text;
}

TEST(StreamCheck, TellsLostRepeatedAndForeignTokens) {
  const TokenScript script = demo_script();
  const auto counts = [&](const std::vector<int64_t>& indices) {
    StreamCheck check;
    for (const int64_t i : indices) check.take(script, 7, words(script, 7, {i}));
    check.finish(6);
    return std::vector<int64_t>{check.counts().lost, check.counts().repeated,
                                check.counts().out_of_order};
  };
  EXPECT_THAT(counts({0, 1, 2, 3, 4, 5}), testing::ElementsAre(0, 0, 0));
  EXPECT_THAT(counts({0, 1, 4, 5}), testing::ElementsAre(2, 0, 0));
  EXPECT_THAT(counts({0, 1, 2, 3}), testing::ElementsAre(2, 0, 0));
  EXPECT_THAT(counts({0, 1, 1, 2, 3, 4, 5}), testing::ElementsAre(0, 1, 0));
  EXPECT_THAT(counts({0, 2, 1, 3, 4, 5}), testing::ElementsAre(1, 1, 0));
  StreamCheck check;
  EXPECT_EQ(check.take(script, 7, words(script, 7, {0, 1}) + " Xylophone" + words(script, 7, {2})),
            3);
  EXPECT_EQ(check.counts().out_of_order, 1);
}

TEST(StreamCheck, MergedTokensCountOneByOne) {
  const TokenScript script = demo_script();
  StreamCheck check;
  EXPECT_EQ(check.take(script, 3, words(script, 3, {0, 1, 2, 3})), 4);
  EXPECT_EQ(check.received(), 4);
}

TEST(BytesPerConnection, IsTheSlope) {
  EXPECT_DOUBLE_EQ(bytes_per_connection({{0, 500}, {10, 600}, {20, 700}}), 10);
  EXPECT_DOUBLE_EQ(bytes_per_connection({{0, 500}}), 0);
}

class BenchServe : public testing::Test {
 protected:
  BenchServe() {
    options_.streams = 200;
    options_.tokens = 300;
    options_.ramp_s = 0.1;
    options_.server.source.tokens_per_s = 200;
    options_.server.source.batches = 10;
  }
  SyntheticResult run() {
    auto result = run_synthetic(options_, script_, "test");
    EXPECT_TRUE(result) << result.error().message();
    return result ? *result : SyntheticResult();
  }
  TokenScript script_ = demo_script();
  SyntheticOptions options_;
};

TEST_F(BenchServe, NothingIsLost) {
  const SyntheticResult result = run();
  EXPECT_EQ(result.connections, 200);
  EXPECT_EQ(result.completed, 200);
  EXPECT_EQ(result.tokens, 200 * 300);
  EXPECT_TRUE(all_received(result));
  EXPECT_THAT(result.problems, testing::IsEmpty());
  EXPECT_GT(bytes_per_connection(result.idle), 0);
}

TEST_F(BenchServe, SeveralAnswersShareAConnection) {
  options_.streams_per_connection = 8;
  options_.tokens = 40;
  const SyntheticResult result = run();
  EXPECT_EQ(result.connections, 25);
  EXPECT_TRUE(all_received(result));
  EXPECT_EQ(result.tokens, 200 * 40);
}

// An answer is longer than the sockets' buffers, so whoever does not read is in the gateway's way if anything is.
TEST_F(BenchServe, WhoDoesNotReadHoldsUpNobody) {
  options_.streams = 80;
  options_.tokens = 1500;  // they block after 500, and the others go on for seconds
  options_.server.source.tokens_per_s = 400;
  options_.slow_share = 0.25;
  const SyntheticResult result = run();
  EXPECT_EQ(result.slow_connections, 20);
  EXPECT_EQ(result.streams, 60);
  EXPECT_EQ(result.tokens, 60 * 1500);
  EXPECT_TRUE(all_received(result));
  EXPECT_THAT(result.problems, testing::IsEmpty());
}

// A running server, as far as the client can tell.
TEST_F(BenchServe, UsersGetTheirAnswers) {
  options_.server.source.tokens_per_s = 1000;
  const auto stamps = Stamps::create(1, 1);
  ASSERT_TRUE(stamps);
  const auto server = ServerProcess::start(options_.server, script_, **stamps);
  ASSERT_TRUE(server) << server.error().message();
  UrlOptions users;
  users.url = *apps::parse_ws_url("ws://127.0.0.1:" + std::to_string((*server)->port()));
  users.requests = 40;
  users.request_rate = 200;
  users.concurrency = 5;
  users.prompt_tokens = 400;
  users.answer_tokens = 7;
  const auto result = run_url(users);
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->completed, 40);
  EXPECT_EQ(result->failed, 0);
  EXPECT_EQ(result->answer_tokens, 40 * 7);
  EXPECT_EQ(result->first_token.size(), 40U);
  EXPECT_EQ(result->per_token.size(), 40U);
  EXPECT_NEAR(static_cast<double>(result->prompt_tokens), 40 * 400, 40 * 40);  // about

  users.model = "another";
  const auto refused = run_url(users);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().context, testing::HasSubstr("does not serve the requested model"));
}

TEST_F(BenchServe, TooFewDescriptorsAreComplainedOf) {
  options_.streams = 100'000'000;
  const auto result = run_synthetic(options_, script_, "test");
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().context,
              testing::HasSubstr("100000064 open files are needed, the limit is"));
}

}  // namespace
}  // namespace cedar::bench
