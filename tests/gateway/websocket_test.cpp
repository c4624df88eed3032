// The WebSocket protocol over real sockets: events and their numbers, cancelling, resuming, limits, liveness.

#include "tests/gateway/stream_fixture.h"

namespace cedar::gateway {
namespace {

using test::eventually;
using test::WebSocket;
using testing::HasSubstr;
using namespace std::chrono_literals;

TEST_F(StreamTest, AConnectionIsGreetedWithItsLimits) {
  start();
  WebSocket socket(port());
  EXPECT_EQ(socket.head().status, 101);
  EXPECT_EQ(socket.head().headers.at("sec-websocket-protocol"), "cedar.v1");
  const Json event = read_event(socket);
  EXPECT_EQ(event["type"], "session.created");
  EXPECT_EQ(event["limits"]["max_in_flight"], 32);
  EXPECT_EQ(event["models"][0], "demo");
}

TEST_F(StreamTest, AResponseFromCreatedToDone) {
  answer_with("Think.</think>Hello there, friend.");
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("thinking":{"type":"enabled"})"));
  const auto events = read_until(socket, "response.done");
  std::vector<std::string> kinds;
  int64_t seq = 0;
  for (const Json& event : events) {
    EXPECT_EQ(event["response_id"], "resp_0001");
    EXPECT_EQ(event["seq"], ++seq);
    EXPECT_EQ(event["event_id"].get<std::string>().size(), 20U);
    const auto type = event["type"].get<std::string>();
    if (kinds.empty() || kinds.back() != type) kinds.push_back(type);
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"response.created", "response.progress",
                                             "response.in_progress", "response.progress",
                                             "response.reasoning.delta", "response.reasoning.done",
                                             "response.content.delta", "response.content.done",
                                             "response.choice.done", "response.done"}));
  EXPECT_EQ(events.front()["client_event_id"], "c1");
  EXPECT_EQ(events.front()["model"], "demo");
  const int64_t prompt = events[3]["usage"]["prompt_tokens"].get<int64_t>();
  EXPECT_GT(prompt, 0);
  for (const size_t i : {1, 2}) {
    EXPECT_EQ(events[i]["stage"], "encoder");
    EXPECT_EQ(events[i]["computed"], i == 1 ? 0 : prompt);
    EXPECT_EQ(events[i]["total"], prompt);
  }
  EXPECT_EQ(events[4]["stage"], "replay");
  EXPECT_EQ(joined(events, "response.reasoning.delta"), "Think.");
  EXPECT_EQ(joined(events, "response.content.delta"), "Hello there, friend.");
  EXPECT_EQ(events.back()["status"], "completed");
  EXPECT_GT(events.back()["usage"]["completion_tokens"].get<int>(), 3);
}

TEST_F(StreamTest, TheEncodersProgressIsToldAtAMeasuredPace) {
  script_->chunk_tokens = 8;
  script_->encoder_step_us = 2000;
  start();
  WebSocket socket(port());
  open(socket);
  std::string words;
  for (int i = 0; i < 1500; ++i) words += "word ";
  socket.send(R"({"type":"response.create","request":{"messages":[{"role":"user","content":")" +
              words + R"("}]}})");
  std::vector<int64_t> computed;
  int64_t total = 0;
  for (const Json& event : read_until(socket, "response.done")) {
    if (event["type"] != "response.progress" || event["stage"] != "encoder") continue;
    computed.push_back(event["computed"].get<int64_t>());
    total = event["total"].get<int64_t>();
  }
  // 190 chunks of 2 ms each or more: far fewer events than chunks, several of them, and the last one.
  ASSERT_GT(total, 1500);
  EXPECT_GT(computed.size(), 2U);
  EXPECT_LT(static_cast<int64_t>(computed.size()), total / script_->chunk_tokens / 4);
  EXPECT_TRUE(std::is_sorted(computed.begin(), computed.end()));
  EXPECT_EQ(computed.back(), total);
}

TEST_F(StreamTest, DeltasJoinToTheAnswerOfAPlainRequest) {
  answer_with("Emoji \xF0\x9F\x98\x80 and \xE4\xB8\xAD\xE6\x96\x87.");
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001"));
  const auto events = read_until(socket, "response.done");
  const Json whole = Json::parse(chat(user())->body);
  EXPECT_EQ(joined(events, "response.content.delta"), whole["choices"][0]["message"]["content"]);
}

TEST_F(StreamTest, TokensOfAllEventsAreThoseOfAPlainRequest) {
  answer_with("Think.</think>Hello there, friend.");
  start();
  WebSocket socket(port());
  open(socket);
  const std::string asked = R"("return_token_ids":true,"thinking":{"type":"enabled"})";
  socket.send(create("resp_0001", asked));
  std::vector<TokenId> tokens;
  for (const Json& event : read_until(socket, "response.done")) {
    if (!event.contains("token_ids")) continue;
    for (const Json& id : event["token_ids"]) tokens.push_back(id.get<TokenId>());
  }
  // The last one ends the answer and has no text.
  const Json whole = Json::parse(chat(user(asked))->body);
  EXPECT_EQ(tokens, whole["choices"][0]["token_ids"].get<std::vector<TokenId>>());
}

TEST_F(StreamTest, AToolCallHasItsOwnEvents) {
  answer_with(
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"travel::weather\">\n<｜DSML｜ parameter "
      "name=\"city\" "
      "string=\"true\">Paris</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001"));
  const auto events = read_until(socket, "response.done");
  std::string arguments;
  for (const Json& event : events) {
    if (event["type"] == "response.tool_call.begin") {
      EXPECT_EQ(event["name"], "weather");
      EXPECT_EQ(event["namespace"], "travel");
      EXPECT_EQ(event["call_id"].get<std::string>().rfind("call_", 0), 0U);
    }
    if (event["type"] == "response.tool_call.done")
      arguments = event["arguments"].get<std::string>();
    if (event["type"] == "response.choice.done") {
      EXPECT_EQ(event["finish_reason"], "tool_calls");
    }
  }
  EXPECT_EQ(arguments, R"({"city": "Paris"})");
  EXPECT_EQ(joined(events, "response.tool_call.arguments.delta"), arguments);
}

TEST_F(StreamTest, CancellingEndsAResponseWithItsUsage) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":4000)"));
  read_until(socket, "response.content.delta");
  socket.send(R"({"type":"response.cancel","response_id":"resp_0001"})");
  const Json done = read_until(socket, "response.done").back();
  EXPECT_EQ(done["status"], "cancelled");
  EXPECT_GT(done["usage"]["completion_tokens"].get<int>(), 0);
  EXPECT_TRUE(eventually([&] { return idle(); }, 1s));
  socket.send(R"({"type":"response.cancel","event_id":"c9","response_id":"resp_0001"})");
  const Json error = read_event(socket);
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["code"], "response_not_found");
  EXPECT_EQ(error["client_event_id"], "c9");
}

TEST_F(StreamTest, ACancellationRightAfterTheCreateIsNotLost) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  for (int i = 0; i < 20; ++i) {
    const std::string id = "resp_000" + std::to_string(i);
    socket.send(create(id, R"("max_tokens":4000)"));
    socket.send(R"({"type":"response.cancel","response_id":")" + id + R"("})");
    EXPECT_EQ(read_until(socket, "response.done", id).back()["status"], "cancelled");
  }
  EXPECT_TRUE(eventually([&] { return idle(); }, 1s));
}

TEST_F(StreamTest, TheTokenLimitMakesAResponseIncomplete) {
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":2)"));
  const auto events = read_until(socket, "response.done");
  EXPECT_EQ(events.back()["status"], "incomplete");
  EXPECT_EQ(events[events.size() - 2]["finish_reason"], "length");
}

TEST_F(StreamTest, BadMessagesAreErrorsAndTheSocketStaysOpen) {
  start();
  WebSocket socket(port());
  open(socket);
  const auto expect_error = [&](const std::string& message, const std::string& param) {
    socket.send(message);
    const Json event = read_event(socket);
    EXPECT_EQ(event["type"], "error") << message;
    EXPECT_EQ(event["error"]["param"].is_null() ? "" : event["error"]["param"].get<std::string>(),
              param);
    EXPECT_FALSE(event.contains("seq"));
  };
  expect_error(R"({"type":"response.create","event_id":"e"})", "request");
  expect_error(R"({"type":"response.create","response_id":"short","request":{}})", "response_id");
  expect_error(R"({"type":"response.create","request":{"messages":[]}})", "messages");
  expect_error(create("resp_0001", R"("temperature":"x")"), "temperature");
  expect_error(create("resp_0001", R"("max_tokens":1000000)"), "max_tokens");
  expect_error(create("resp_0001", {}, R"("credits":"x")"), "credits");
  expect_error(R"({"type":"response.resume","response_id":"resp_none"})", "");
  expect_error(R"({"type":"response.resume","response_id":"resp_none","last_seq":-1})", "last_seq");
  expect_error(R"({"type":"ping","event_id":7})", "event_id");
  expect_error(R"({"type":"ping","event_id":")" + std::string(129, 'e') + R"("})", "event_id");
  expect_error(R"({"type":"session.update","coalesce_ms":201})", "coalesce_ms");
  expect_error(R"({"type":"session.update","ping_interval_s":0})", "ping_interval_s");
  expect_error(R"({"type":"session.update","ping_interval_s":"x"})", "ping_interval_s");
  socket.send(create("resp_0002"));
  EXPECT_EQ(read_until(socket, "response.done").back()["status"], "completed");
}

TEST_F(StreamTest, AnEventIdThatIsTooLongIsRefusedByName) {
  start();
  WebSocket socket(port());
  open(socket);
  const std::string longest(128, 'e');
  socket.send(R"({"type":"response.cancel","event_id":")" + longest +
              R"(","response_id":"resp_none"})");
  EXPECT_EQ(read_event(socket)["client_event_id"], longest);
  std::string message = create("resp_0001");
  message.replace(message.find("c1"), 2, longest + "e");
  socket.send(message);
  const Json error = read_event(socket);
  EXPECT_EQ(error["error"]["message"], "event_id: must have at most 128 bytes, got 129");
  EXPECT_EQ(error["response_id"], "resp_0001");
  EXPECT_FALSE(error.contains("client_event_id"));
}

TEST_F(StreamTest, MalformedMessagesCloseTheSecondTime) {
  start();
  WebSocket socket(port());
  open(socket);
  socket.send("{nonsense");
  EXPECT_EQ(read_event(socket)["type"], "error");
  socket.send(R"({"type":"no.such"})");
  EXPECT_EQ(read_event(socket)["type"], "error");
  EXPECT_EQ(read_event(socket)["type"], "closed");
  EXPECT_EQ(socket.close_code(), 4000);
}

TEST_F(StreamTest, BinaryInvalidUtf8AndLongMessagesClose) {
  options_.stream.max_message_bytes = 5000;
  start();
  WebSocket binary(port());
  open(binary);
  binary.send_frame(2, "abc");
  EXPECT_EQ(read_event(binary)["type"], "closed");
  EXPECT_EQ(binary.close_code(), 1003);
  WebSocket invalid(port());
  open(invalid);
  invalid.send_frame(1, "\xff\xfe");
  EXPECT_EQ(read_event(invalid)["type"], "closed");
  EXPECT_EQ(invalid.close_code(), 1007);
  WebSocket large(port());
  open(large);
  large.send(std::string(6000, 'x'));
  EXPECT_EQ(read_event(large)["type"], "closed");
  EXPECT_EQ(large.close_code(), 1009);
}

TEST_F(StreamTest, PingIsAnsweredWithItsNonce) {
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(R"({"type":"ping","nonce":"n-1"})");
  const Json pong = read_event(socket);
  EXPECT_EQ(pong["type"], "pong");
  EXPECT_EQ(pong["nonce"], "n-1");
}

TEST_F(StreamTest, SeveralResponsesShareASocketUpToTheLimit) {
  options_.stream.max_in_flight = 2;
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":3000)"));
  socket.send(create("resp_0002", R"("max_tokens":10)"));
  socket.send(create("resp_0003", R"("max_tokens":10)"));
  bool refused = false, second_done = false;
  while (!refused || !second_done) {
    const Json event = read_event(socket);
    ASSERT_NE(event["type"], "closed");
    if (event["type"] == "error") refused = event["error"]["code"] == "too_many_responses";
    if (event["type"] == "response.done") second_done = event["response_id"] == "resp_0002";
  }
  socket.send(create("resp_0003", R"("max_tokens":10)"));
  EXPECT_EQ(read_until(socket, "response.done", "resp_0003").back()["status"], "incomplete");
}

// B59: two fast producers on one connection; every event whole and in its response's order.
TEST_F(StreamTest, TwoFastProducersKeepTheirOrder) {
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":2000,"n":1)"));
  socket.send(create("resp_0002", R"("max_tokens":2000,"n":1)"));
  std::map<std::string, int64_t> seq;
  std::map<std::string, size_t> bytes;
  for (int done = 0; done < 2;) {
    const Json event = read_event(socket);
    ASSERT_NE(event["type"], "closed");
    const auto id = event["response_id"].get<std::string>();
    ASSERT_EQ(event["seq"], ++seq[id]);
    if (event["type"] == "response.content.delta")
      bytes[id] += event["delta"].get_ref<const std::string&>().size();
    done += event["type"] == "response.done" ? 1 : 0;
  }
  EXPECT_EQ(bytes["resp_0001"], bytes["resp_0002"]);
  EXPECT_GE(bytes["resp_0001"], 2000U);
}

TEST_F(StreamTest, ClosingASocketStopsItsWork) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":4000)"));
  socket.send(create("resp_0002", R"("max_tokens":4000)"));
  read_until(socket, "response.content.delta");
  socket.send_close();
  EXPECT_TRUE(eventually([&] { return idle(); }, 1s));
}

TEST_F(StreamTest, ALostSocketStopsItsWorkAfterTheGrace) {
  options_.stream.detach_grace = 50ms;
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  WebSocket resumable(port());
  open(resumable);
  resumable.send(create("resp_0001", R"("max_tokens":4000)"));
  read_until(resumable, "response.content.delta");
  resumable.socket().reset();
  EXPECT_TRUE(eventually([&] { return idle(); }, 2s));
  WebSocket other(port());
  open(other);
  other.send(create("resp_0002", R"("max_tokens":4000)", R"("resumable":false)"));
  read_until(other, "response.content.delta");
  other.socket().reset();
  EXPECT_TRUE(eventually([&] { return idle(); }, 1s));
}

TEST_F(StreamTest, WhatIsNotResumableIsNotKept) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  WebSocket first(port());
  open(first);
  const std::string message = create("resp_0001", R"("max_tokens":4000)", R"("resumable":false)");
  first.send(message);
  read_until(first, "response.content.delta");
  WebSocket second(port());
  open(second);
  second.send(R"({"type":"response.resume","response_id":"resp_0001","last_seq":0})");
  EXPECT_EQ(read_event(second)["error"]["code"], "resume_gap");
  // A retry of the request goes on as before: it asks for nothing that is gone.
  first.send(message);
  first.send(R"({"type":"ping","nonce":"n"})");
  for (const Json& event : read_until(first, "pong")) EXPECT_NE(event["type"], "error") << event;
}

TEST_F(StreamTest, ALostResponseIsResumedWithoutAGap) {
  script_->decoder_step_us = 2000;
  std::string text;
  for (int i = 0; i < 60; ++i) text += "word " + std::to_string(i) + ", ";
  answer_with(text);
  start();
  std::string before;
  int64_t last_seq = 0;
  {
    WebSocket first(port());
    open(first);
    first.send(create("resp_0001"));
    for (int deltas = 0; deltas < 5;) {
      const Json event = read_event(first);
      last_seq = event["seq"].get<int64_t>();
      if (event["type"] != "response.content.delta") continue;
      before += event["delta"].get<std::string>();
      ++deltas;
    }
    first.socket().reset();
  }
  WebSocket second(port());
  open(second);
  second.send(R"({"type":"response.resume","response_id":"resp_0001","last_seq":)" +
              std::to_string(last_seq) + "}");
  const auto events = read_until(second, "response.done");
  for (const Json& event : events) EXPECT_EQ(event["seq"], ++last_seq);
  EXPECT_EQ(before + joined(events, "response.content.delta"), text);
  EXPECT_EQ(events.back()["status"], "completed");
}

TEST_F(StreamTest, AFinishedResponseIsReplayedAndACreateWithItsIdStartsNoSecondRun) {
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001"));
  const auto events = read_until(socket, "response.done");
  const int64_t steps = script_->decoder_steps;
  WebSocket again(port());
  open(again);
  again.send(create("resp_0001"));
  EXPECT_EQ(read_until(again, "response.done"), events);  // byte for byte the same events
  again.send(R"({"type":"response.ack","response_id":"resp_0001","seq":3})");
  again.send(R"({"type":"response.resume","response_id":"resp_0001","last_seq":0})");
  const Json gap = read_event(again);
  EXPECT_EQ(gap["error"]["code"], "resume_gap");
  EXPECT_EQ(gap["oldest_seq"], 4);
  again.send(create("resp_0001"));  // asks for the first one, too
  EXPECT_EQ(read_event(again)["error"]["code"], "resume_gap");
  again.send(R"({"type":"response.resume","response_id":"resp_0001","last_seq":3})");
  EXPECT_EQ(read_event(again)["seq"], 4);
  EXPECT_EQ(script_->decoder_steps, steps);
}

TEST_F(StreamTest, ASecondAttachMovesTheStream) {
  script_->decoder_step_us = 2000;
  answer_endlessly();
  start();
  WebSocket first(port()), second(port());
  open(first);
  open(second);
  first.send(create("resp_0001", R"("max_tokens":200)"));
  read_until(first, "response.content.delta");
  second.send(R"({"type":"response.resume","response_id":"resp_0001"})");
  EXPECT_EQ(read_until(second, "response.done").back()["status"], "incomplete");
  const Json moved = read_until(first, "error").back();
  EXPECT_EQ(moved["error"]["code"], "stream_moved");
  first.send_close();
}

TEST_F(StreamTest, KeptEventsExpire) {
  options_.stream.replay_ttl = 30ms;
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001"));
  read_until(socket, "response.done");
  Json event;
  for (int i = 0; i < 100 && event["type"] != "error"; ++i) {
    std::this_thread::sleep_for(10ms);
    socket.send(R"({"type":"response.resume","response_id":"resp_0001"})");
    event = read_event(socket);
    if (event["type"] != "error") read_until(socket, "response.done");
  }
  EXPECT_EQ(event["error"]["code"], "response_not_found");
}

// B61: unread output is bounded; the connection ends with the protocol's code and others do not notice.
TEST_F(StreamTest, AReaderThatStopsIsClosedAndOthersGoOn) {
  options_.stream.merge_unsent_bytes = 20000;
  options_.stream.max_unsent_bytes = 200000;
  options_.stream.detach_grace = 10ms;
  script_->blocks = 100000;
  card_.context_tokens = 200000;
  answer_endlessly();
  start();
  WebSocket stuck(port(), "cedar.v1", {}, 4096);
  WebSocket reader(port());
  open(reader);
  for (int i = 0; i < 8; ++i) {
    stuck.send(create("stuck_000" + std::to_string(i), R"("max_tokens":15000,"logprobs":true)"));
  }
  reader.send(create("reader_01", R"("max_tokens":100)"));
  EXPECT_EQ(read_until(reader, "response.done").back()["status"], "incomplete");
  EXPECT_TRUE(eventually([&] {
    return test::get(port(), "/metrics")->body.find("cedar_gateway_slow_readers_total 1") !=
           std::string::npos;
  }));
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

TEST_F(StreamTest, ASlowReaderGetsMergedDeltas) {
  options_.stream.merge_unsent_bytes = 2000;
  answer_endlessly();
  start();
  WebSocket slow(port(), "cedar.v1", {}, 4096);
  open(slow);
  slow.send(create("resp_0001", R"("max_tokens":15000)"));
  ASSERT_TRUE(eventually([&] { return script_->decoder_steps > 0; }));
  ASSERT_TRUE(eventually([&] { return idle(); }));  // all tokens are made, hardly any is read
  std::vector<Json> events;
  do {
    slow.send_frame(9, {});  // the pong shares the socket with the merged deltas
    events.push_back(read_event(slow));
    ASSERT_EQ(events.back()["seq"], events.size()) << "an event twice, or one missing";
  } while (events.back()["type"] != "response.done");
  EXPECT_EQ(events.back()["status"], "incomplete");
  EXPECT_LT(events.size(), 5000U);  // of 15000 tokens
  EXPECT_EQ(joined(events, "response.content.delta").size(),
            15000 * card_.tokenizer->token_bytes(card_.tokenizer->encode("word ")[0]).size());
}

TEST_F(StreamTest, SilentClientsArePingedThenClosed) {
  options_.stream.ping_interval = 20ms;
  start();
  WebSocket answering(port());
  open(answering);
  WebSocket silent(port());
  open(silent);
  silent.answer_pings = false;
  EXPECT_EQ(read_event(silent)["type"], "closed");
  EXPECT_EQ(silent.close_code(), 4004);
  EXPECT_EQ(silent.pings, 2);
}

TEST_F(StreamTest, IdleConnectionsAreClosed) {
  options_.stream.idle_timeout = 40ms;
  start();
  WebSocket socket(port());
  open(socket);
  EXPECT_EQ(read_event(socket)["type"], "closed");
  EXPECT_EQ(socket.close_code(), 1000);
}

TEST_F(StreamTest, AFailedStepFailsTheResponseOnly) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":4000)"));
  read_until(socket, "response.content.delta");
  script_->decoder_fails = true;
  const Json done = read_until(socket, "response.done").back();
  EXPECT_EQ(done["status"], "failed");
  EXPECT_EQ(done["error"]["type"], "internal_error");
  script_->decoder_fails = false;
  socket.send(create("resp_0002", R"("max_tokens":5)"));
  EXPECT_EQ(read_until(socket, "response.done", "resp_0002").back()["status"], "incomplete");
}

TEST_F(StreamTest, AStopIsAnnouncedAndRunningResponsesFinish) {
  script_->decoder_step_us = 2000;
  answer_endlessly();
  start();
  WebSocket busy(port()), idle_socket(port());
  open(busy);
  open(idle_socket);
  busy.send(create("resp_0001", R"("max_tokens":50)"));
  read_until(busy, "response.content.delta");
  gateway_->begin_stop(10s);
  const Json going = read_event(idle_socket);
  EXPECT_EQ(going["type"], "session.going_away");
  EXPECT_EQ(going["grace_s"], 10.0);
  EXPECT_EQ(read_event(idle_socket)["type"], "closed");
  EXPECT_EQ(idle_socket.close_code(), 1001);
  system_->drain(10s);
  const auto events = read_until(busy, "response.done");
  EXPECT_EQ(events.back()["status"], "incomplete");
  EXPECT_EQ(read_event(busy)["type"], "closed");
  EXPECT_EQ(busy.close_code(), 1001);
}

}  // namespace
}  // namespace cedar::gateway
