// Backpressure that the client rules: events wait for credits.

#include <map>

#include "tests/gateway/stream_fixture.h"

namespace cedar::gateway {
namespace {

using test::eventually;
using test::WebSocket;
using namespace std::chrono_literals;

class CreditsTest : public StreamTest {
 protected:
  static std::string credit(const std::string& id, int64_t add) {
    return R"({"type":"response.credit","event_id":"c2","response_id":")" + id + R"(","add":)" +
           std::to_string(add) + "}";
  }
  /// What the server has sent so far: a pong comes behind it.
  static std::vector<Json> sent_so_far(WebSocket& socket) {
    socket.send(R"({"type":"ping","nonce":"so-far"})");
    auto events = read_until(socket, "pong");
    events.pop_back();
    return events;
  }
  std::string words(size_t count) {
    std::string text;
    const std::string_view word = card_.tokenizer->token_bytes(card_.tokenizer->encode("word ")[0]);
    while (count-- > 0) text += word;
    return text;
  }
};

TEST_F(CreditsTest, EventsWaitForCreditsAndMergeMeanwhile) {
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":500)", R"("credits":2)"));
  ASSERT_TRUE(eventually([&] { return script_->decoder_steps > 0; }));
  ASSERT_TRUE(eventually([&] { return idle(); }));  // the model has not waited
  auto events = sent_so_far(socket);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0]["type"], "response.created");
  EXPECT_TRUE(sent_so_far(socket).empty());
  socket.send(credit("resp_0001", 1));
  EXPECT_EQ(sent_so_far(socket).size(), 1U);
  // Another answer of the connection goes on by itself.
  socket.send(create("resp_0002", R"("max_tokens":3)"));
  EXPECT_EQ(read_until(socket, "response.done").back()["response_id"], "resp_0002");
  socket.send(credit("resp_0001", 1000));
  const auto rest = read_until(socket, "response.done");
  EXPECT_EQ(rest.back()["response_id"], "resp_0001");
  EXPECT_EQ(rest.back()["status"], "incomplete");
  EXPECT_EQ(joined(rest, "response.content.delta"), words(500));
  EXPECT_LT(rest.size(), 20U);
  EXPECT_EQ(rest.front()["seq"], 4);
  // A credit behind the end is late, not wrong.
  socket.send(credit("resp_0001", 1));
  EXPECT_TRUE(sent_so_far(socket).empty());
}

TEST_F(CreditsTest, WithEnoughCreditsNothingWaits) {
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", {}, R"("credits":1000)"));
  const auto events = read_until(socket, "response.done");
  EXPECT_EQ(joined(events, "response.content.delta"), "Hello there, friend.");
}

TEST_F(CreditsTest, WhatWaitsAtTheEndIsSentAfterAWhile) {
  options_.stream.detach_grace = 50ms;
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", {}, R"("credits":1)"));
  EXPECT_EQ(read_until(socket, "response.done").back()["status"], "completed");
}

TEST_F(CreditsTest, TooMuchThatWaitsEndsTheAnswer) {
  options_.stream.replay_max_bytes = 2000;
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":15000)", R"("credits":1)"));
  EXPECT_TRUE(eventually([&] {
    return test::get(port(), "/metrics")->body.find("cedar_gateway_slow_readers_total 1") !=
           std::string::npos;
  }));
  ASSERT_TRUE(eventually([&] { return idle(); }));
  socket.send(credit("resp_0001", 100));
  const Json done = read_until(socket, "response.done").back();
  EXPECT_EQ(done["status"], "failed");
  EXPECT_EQ(done["error"]["type"], "client_too_slow");
}

// What waits counts, not what has been made: each choice's text waits while the other one's is read, and far more
// than the bound passes through.
TEST_F(CreditsTest, WhoKeepsUpIsNeverTooSlow) {
  constexpr int64_t kPhases = 60;
  constexpr int64_t kPhaseTokens = 50;
  options_.stream.replay_max_bytes = 4000;
  script_->answer_stops_at = kPhaseTokens;
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("n":2,"max_tokens":)" + std::to_string(kPhases * kPhaseTokens),
                     R"("credits":1)"));
  std::map<int64_t, std::string> text;
  int64_t deltas = 0;
  Json event;
  do {
    event = read_event(socket);
    ASSERT_NE(event["type"], "closed");
    if (event["type"] == "response.content.delta") {
      text[event["index"].get<int64_t>()] += event["delta"].get<std::string>();
      ++deltas;
      script_->answer_stops_at += kPhaseTokens;
    }
    // Each step writes a token for both choices, unless they wait.
    const int64_t steps = script_->decoder_steps + kPhaseTokens + 5;
    if (deltas > 0 && script_->answer_stops_at < kPhases * kPhaseTokens) {
      ASSERT_TRUE(eventually([&] { return script_->decoder_steps >= steps; }));
    }
    socket.send(credit("resp_0001", 1));
  } while (event["type"] != "response.done");
  EXPECT_EQ(event["status"], "incomplete") << event;
  EXPECT_EQ(text[0], words(kPhases * kPhaseTokens));
  EXPECT_EQ(text[1], words(kPhases * kPhaseTokens));
  EXPECT_LT(deltas, 3 * kPhases);
}

TEST_F(CreditsTest, ThoseSentRightBehindTheCreateCount) {
  options_.stream.detach_grace = 60s;
  start();
  for (int i = 0; i < 20; ++i) {
    WebSocket socket(port());
    open(socket);
    const std::string id = "resp_early_" + std::to_string(i);
    const std::string named = R"("event_id":"c3","response_id":")" + id + R"(")";
    socket.send(create(id, {}, R"("credits":1)"));
    socket.send(credit(id, 5));
    socket.send(R"({"type":"response.ack",)" + named + R"(,"seq":0})");
    socket.send(R"({"type":"response.resume",)" + named + R"(,"last_seq":0})");
    socket.send(credit(id, 1000));
    const auto events = read_until(socket, "response.done");
    for (const Json& event : events) ASSERT_NE(event["type"], "error") << event;
    EXPECT_EQ(joined(events, "response.content.delta"), "Hello there, friend.");
    socket.send_close();
  }
}

TEST_F(CreditsTest, CancellingFreesThePlaceOfAnAnswerThatWaitsForThem) {
  options_.stream.detach_grace = 60s;
  options_.stream.max_in_flight = 1;
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  const auto cancel = [&](const std::string& id) {
    socket.send(R"({"type":"response.cancel","response_id":")" + id + R"("})");
    return read_until(socket, "response.done");
  };
  // One that runs and one that has ended.
  script_->answer_stops_at = 100;
  socket.send(create("resp_0001", R"("max_tokens":500)", R"("credits":1)"));
  EXPECT_EQ(read_event(socket)["type"], "response.created");
  ASSERT_TRUE(eventually([&] { return script_->decoder_steps > 110; }));
  auto events = cancel("resp_0001");
  EXPECT_EQ(events.back()["status"], "cancelled");
  EXPECT_EQ(events.back()["seq"], static_cast<int64_t>(events.size()) + 1);
  EXPECT_TRUE(eventually([&] { return idle(); }));
  script_->answer_stops_at = 1 << 30;
  const int64_t steps = script_->decoder_steps;
  socket.send(create("resp_0002", R"("max_tokens":50)", R"("credits":1)"));
  EXPECT_EQ(read_event(socket)["type"], "response.created");
  ASSERT_TRUE(eventually([&] { return script_->decoder_steps > steps && idle(); }));
  events = cancel("resp_0002");
  EXPECT_EQ(events.back()["status"], "incomplete");
  EXPECT_EQ(joined(events, "response.content.delta"), words(50));
  socket.send(create("resp_0003", R"("max_tokens":3)"));
  EXPECT_EQ(read_event(socket)["type"], "response.created");
}

TEST_F(CreditsTest, AStopEndsAnswersThatWaitForThem) {
  options_.stream.detach_grace = 60s;
  answer_endlessly();
  start();
  WebSocket ended(port()), running(port());
  open(ended);
  open(running);
  ended.send(create("resp_0001", R"("max_tokens":50)", R"("credits":1)"));
  EXPECT_EQ(read_event(ended)["type"], "response.created");
  ASSERT_TRUE(eventually([&] { return script_->decoder_steps > 0; }));
  ASSERT_TRUE(eventually([&] { return idle(); }));
  script_->answer_stops_at = 20;
  running.send(create("resp_0002", R"("max_tokens":50)", R"("credits":1)"));
  EXPECT_EQ(read_event(running)["type"], "response.created");
  const int64_t steps = script_->decoder_steps;
  ASSERT_TRUE(eventually([&] { return script_->decoder_steps > steps; }));
  gateway_->begin_stop(10s);
  EXPECT_EQ(read_until(ended, "response.done").back()["status"], "incomplete");
  EXPECT_EQ(read_event(ended)["type"], "closed");
  EXPECT_EQ(ended.close_code(), 1001);
  system_->drain(0ms);
  EXPECT_EQ(read_until(running, "response.done").back()["status"], "cancelled");
  EXPECT_EQ(read_event(running)["type"], "closed");
  EXPECT_EQ(running.close_code(), 1001);
}

TEST_F(CreditsTest, AResumeStartsWithThemAgain) {
  answer_endlessly();
  script_->decoder_step_us = 200;
  start();
  {
    WebSocket socket(port());
    open(socket);
    socket.send(create("resp_0001", R"("max_tokens":300)", R"("credits":2)"));
    EXPECT_EQ(read_event(socket)["seq"], 1);
    EXPECT_EQ(read_event(socket)["seq"], 2);
    socket.socket().reset();
  }
  ASSERT_TRUE(eventually([&] { return gateway_->connections() == 0; }));
  WebSocket again(port());
  open(again);
  again.send(R"({"type":"response.resume","response_id":"resp_0001","last_seq":1})");
  std::vector<Json> events;
  while (events.empty() || events.back()["type"] != "response.done") {
    events.push_back(read_event(again));
    ASSERT_NE(events.back()["type"], "closed");
    again.send(credit("resp_0001", 1));
  }
  EXPECT_EQ(joined(events, "response.content.delta"), words(300));
  EXPECT_EQ(events.front()["seq"], 2);
  EXPECT_EQ(events.back()["seq"], static_cast<int64_t>(events.size()) + 1);
}

TEST_F(CreditsTest, WrongCreditsAreRefusedByName) {
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", {}, R"("credits":0)"));
  EXPECT_EQ(read_event(socket)["error"]["param"], "credits");
  socket.send(credit("resp_0001", 0));
  EXPECT_EQ(read_event(socket)["error"]["param"], "add");
  socket.send(R"({"type":"response.credit","response_id":"resp_0001"})");
  EXPECT_EQ(read_event(socket)["error"]["param"], "add");
  socket.send(credit("resp_none", 1));
  EXPECT_EQ(read_event(socket)["error"]["code"], "response_not_found");
}

}  // namespace
}  // namespace cedar::gateway
