// What a gateway with its actors counts, what its readiness says, and what it tells of requests under way.

#include <algorithm>
#include <sstream>

#include "gateway/api_keys.h"
#include "tests/gateway/stream_fixture.h"

namespace cedar::gateway {
namespace {

using test::eventually;
using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

class MetricsTest : public StreamTest {
 protected:
  std::string scrape() { return test::get(port(), "/metrics")->body; }
  /// 0 for a series that is not there.
  double value(const std::string& name) {
    std::istringstream lines(scrape());
    for (std::string line; std::getline(lines, line);) {
      if (line.rfind(name + ' ', 0) == 0) return std::stod(line.substr(name.size() + 1));
    }
    return 0;
  }
  bool is(const std::string& name, double expected) {
    return eventually([&] { return value(name) == expected; }, 30s);
  }
  static std::string phase(const std::string& name, const char* of = "phase_seconds_count") {
    return std::string("cedar_actors_") + of + "{phase=\"" + name + "\"}";
  }
  int ready() { return test::get(port(), "/ready")->status; }
  /// A request that runs until its socket is closed.
  std::unique_ptr<test::Socket> begin_endless() {
    script_->answer_stops_at = 5;
    auto socket = std::make_unique<test::Socket>(port());
    socket->send(test::post_text("/v1/chat/completions", user(R"("max_tokens":4000)")));
    return socket;
  }
};

TEST_F(MetricsTest, ARequestIsCountedInEveryRoleOnItsWay) {
  start();
  ASSERT_EQ(chat(user())->status, 200);
  for (const char* name : {"queue", "reserve", "prefill", "handover", "replay", "decode"}) {
    EXPECT_TRUE(is(phase(name), 1)) << name;
  }
  EXPECT_EQ(value(phase("reroute")), 0);
  EXPECT_EQ(value("cedar_gateway_response_seconds_count"), 1);
  const double read = value("cedar_gateway_prompt_tokens_total");
  const double written = value("cedar_gateway_completion_tokens_total");
  EXPECT_GT(read, 0);
  EXPECT_GT(written, 0);
  EXPECT_EQ(value("cedar_encoder_rows_total"), read);
  EXPECT_EQ(value("cedar_encoder_chunk_rows_sum"), read);
  EXPECT_EQ(value("cedar_encoder_chunk_seconds_count"), 1);
  EXPECT_TRUE(is(R"(cedar_encoder_prompts_total{outcome="finished"})", 1));
  EXPECT_EQ(value("cedar_decoder_tokens_total"), written);
  EXPECT_TRUE(is(R"(cedar_decoder_sequences_ended_total{outcome="finished"})", 1));
  EXPECT_GE(value("cedar_decoder_step_seconds_count"), written);
  EXPECT_EQ(value("cedar_encoder_kv_blocks"), static_cast<double>(script_->blocks));
  EXPECT_EQ(value("cedar_decoder_kv_blocks"), static_cast<double>(script_->blocks));
  EXPECT_EQ(value("cedar_cluster_decoder_kv_blocks"), static_cast<double>(script_->blocks));
  EXPECT_EQ(value(R"(cedar_cluster_nodes{role="encoder"})"), 1);
  EXPECT_GT(value("cedar_actors_live"), 0);
}

TEST_F(MetricsTest, CancellationsFailuresAndRejectionsAreToldApart) {
  answer_endlessly();
  start();
  auto running = begin_endless();
  ASSERT_TRUE(is("cedar_decoder_sequences", 1));
  ASSERT_TRUE(eventually([&] { return value("cedar_decoder_tokens_total") > 0; }, 30s));
  running.reset();
  EXPECT_TRUE(is(phase("decode", "cancellations_total"), 1));
  EXPECT_TRUE(is(R"(cedar_decoder_sequences_ended_total{outcome="abandoned"})", 1));

  script_->decoder_fails = true;
  EXPECT_EQ(chat(user(R"("max_tokens":4000)"))->status, 500);
  EXPECT_TRUE(is(R"(cedar_actors_failures_total{reason="internal"})", 1));
  EXPECT_TRUE(is("cedar_decoder_step_failures_total", 1));
  EXPECT_TRUE(is(R"(cedar_decoder_sequences_ended_total{outcome="failed"})", 1));
  EXPECT_EQ(value(R"(cedar_actors_rejections_total{reason="overloaded"})"), 0);
}

TEST_F(MetricsTest, WhoFindsTheQueueFullIsCountedAsRejected) {
  answer_endlessly();
  script_->sequences = 1;
  router_.max_queued = 1;
  start();
  const auto running = begin_endless();
  ASSERT_TRUE(is("cedar_actors_running_requests", 1));
  auto waiting = begin_endless();
  ASSERT_TRUE(is("cedar_actors_queued_requests", 1));
  EXPECT_EQ(chat(user())->status, 503);
  EXPECT_EQ(value(R"(cedar_actors_rejections_total{reason="overloaded"})"), 1);
  waiting.reset();
  EXPECT_TRUE(is(phase("queue", "cancellations_total"), 1));
}

// A queue that does not move: others should get the requests, until it does.
TEST_F(MetricsTest, AGatewayWhoseQueueStandsStillIsNotReady) {
  answer_endlessly();
  script_->sequences = 1;
  options_.http.ready_stall = 300ms;
  start();
  auto running = begin_endless();
  ASSERT_TRUE(is("cedar_actors_running_requests", 1));
  std::this_thread::sleep_for(400ms);
  EXPECT_EQ(ready(), 200);  // nobody waits
  const auto waiting = begin_endless();
  EXPECT_TRUE(eventually([&] { return ready() == 503; }, 30s));
  EXPECT_EQ(value("cedar_ready"), 0);
  EXPECT_GE(value("cedar_actors_queue_stalled_seconds"), 0.3);
  EXPECT_EQ(test::get(port(), "/health")->status, 200);
  EXPECT_EQ(test::get(port(), "/livez")->status, 200);
  running.reset();
  EXPECT_TRUE(eventually([&] { return ready() == 200; }, 30s));
  EXPECT_TRUE(is("cedar_actors_queue_stalled_seconds", 0));
}

TEST_F(MetricsTest, WithoutALimitAStandingQueueIsReady) {
  answer_endlessly();
  script_->sequences = 1;
  options_.http.ready_stall = 0ms;
  start();
  const auto running = begin_endless();
  ASSERT_TRUE(is("cedar_actors_running_requests", 1));
  const auto waiting = begin_endless();
  EXPECT_TRUE(eventually([&] { return value("cedar_actors_queue_stalled_seconds") > 0.05; }, 30s));
  EXPECT_EQ(ready(), 200);
}

TEST_F(MetricsTest, RequestsUnderWayAreListedWithoutTheirText) {
  answer_endlessly();
  script_->sequences = 1;
  options_.http.debug_requests = true;
  start();
  EXPECT_EQ(test::get(port(), "/debug/requests")->body, R"({"requests":[]})");
  auto running = begin_endless();
  ASSERT_TRUE(eventually([&] { return value("cedar_decoder_tokens_total") > 0; }, 30s));
  const auto waiting = begin_endless();
  ASSERT_TRUE(is("cedar_actors_queued_requests", 1));
  const auto reply = test::get(port(), "/debug/requests");
  EXPECT_EQ(reply->headers.at("content-type"), "application/json");
  EXPECT_THAT(reply->body, Not(HasSubstr("Hi")));
  const Json requests = Json::parse(reply->body)["requests"];
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0]["phase"], "decode");
  EXPECT_GT(requests[0]["written_tokens"], 0);
  EXPECT_GT(requests[0]["prompt_tokens"], 0);
  EXPECT_EQ(requests[0]["read_tokens"], requests[0]["prompt_tokens"]);
  EXPECT_GE(requests[0]["age_ms"], requests[0]["in_phase_ms"]);
  EXPECT_EQ(requests[1]["phase"], "queue");
  EXPECT_EQ(requests[1]["written_tokens"], 0);
  EXPECT_TRUE(requests[1]["encoder"].is_null());
  running.reset();
  EXPECT_TRUE(eventually(
      [&] {
        const Json left = Json::parse(test::get(port(), "/debug/requests")->body)["requests"];
        return left.size() == 1 && left[0]["phase"] == "decode";
      },
      30s));
}

TEST_F(MetricsTest, RequestsAreListedOnlyWhenAskedForAndToThoseWithAKey) {
  options_.keys.push_back({"anna", digest_of("anna-key-0123456789"), 0, 0, 0});
  options_.http.debug_requests = true;
  start();
  EXPECT_EQ(test::get(port(), "/debug/requests")->status, 401);
  test::Socket socket(port());
  socket.send(
      "GET /debug/requests HTTP/1.1\r\nHost: localhost\r\n"
      "Authorization: Bearer anna-key-0123456789\r\n\r\n");
  EXPECT_EQ(test::read_reply(socket)->status, 200);
}

TEST_F(MetricsTest, ByDefaultNoRequestsAreListed) {
  start();
  EXPECT_EQ(test::get(port(), "/debug/requests")->status, 404);
}

// Field report B62: what clients send never becomes a label.
TEST_F(MetricsTest, TenThousandRandomPathsAndModelsMakeOneSeriesEach) {
  constexpr int kRequests = 5000;  // of each kind
  constexpr int kBatch = 100;
  start();
  test::Socket socket(port());
  const auto exchange = [&](const auto& request) {
    for (int begin = 0; begin < kRequests; begin += kBatch) {
      std::string batch;
      for (int i = begin; i < begin + kBatch; ++i) batch += request(std::to_string(i));
      ASSERT_TRUE(socket.send(batch));
      for (int i = 0; i < kBatch; ++i) ASSERT_EQ(test::read_reply(socket)->status, 404);
    }
  };
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  scrape();  // which is a series of its own from then on
  const auto before = lines(scrape());
  exchange([](const std::string& i) {
    return "GET /random/" + i + "?secret=" + i + " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  });
  exchange([](const std::string& i) {
    return test::post_text("/v1/chat/completions", user(R"("model":"random-)" + i + "\""));
  });
  const std::string text = scrape();
  EXPECT_EQ(value(R"(cedar_gateway_http_requests_total{code="404",route="unknown"})"), kRequests);
  EXPECT_EQ(value(R"(cedar_gateway_http_requests_total{code="404",route="chat"})"), kRequests);
  EXPECT_THAT(text, Not(HasSubstr("random")));
  EXPECT_EQ(lines(text), before + 2);
}

}  // namespace
}  // namespace cedar::gateway
