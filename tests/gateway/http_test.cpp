// HTTP over real sockets: whole answers, server-sent events, errors, misbehaving clients.

#include "tests/gateway/server_fixture.h"

namespace cedar::gateway {
namespace {

using test::eventually;
using testing::ElementsAre;
using testing::HasSubstr;
using namespace std::chrono_literals;

struct Chunks {
  std::vector<Json> all;
  std::string content;
  bool done = false;
};

Chunks parse_chunks(const test::Reply& reply) {
  Chunks chunks;
  for (const std::string& data : test::sse_data(reply.body)) {
    EXPECT_FALSE(chunks.done) << "an event after [DONE]";
    if (data == "[DONE]") {
      chunks.done = true;
      continue;
    }
    chunks.all.push_back(Json::parse(data));
    const Json& chunk = chunks.all.back();
    if (!chunk.contains("choices")) continue;
    for (const Json& choice : chunk["choices"]) {
      if (choice.contains("delta") && choice["delta"].contains("content")) {
        chunks.content += choice["delta"]["content"].get<std::string>();
      }
    }
  }
  return chunks;
}

TEST_F(ServerTest, AChatAnswer) {
  start();
  const auto reply = chat(user());
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->headers.at("content-type"), "application/json");
  const Json answer = Json::parse(reply->body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "demo");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "Hello there, friend.");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  const auto tokens = static_cast<int64_t>(card_.tokenizer->encode("Hello there, friend.").size());
  EXPECT_EQ(answer["usage"]["completion_tokens"], tokens + 1);
  EXPECT_TRUE(answer.contains("seed"));
}

TEST_F(ServerTest, AStreamedChatAnswer) {
  start();
  const auto reply = chat(user(R"("stream":true)"));
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(reply->headers.at("cache-control"), "no-cache");
  const Chunks chunks = parse_chunks(*reply);
  EXPECT_TRUE(chunks.done);
  EXPECT_EQ(chunks.content, "Hello there, friend.");
  EXPECT_EQ(chunks.all.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks.all.back()["choices"][0]["finish_reason"], "stop");
  EXPECT_GT(chunks.all.size(), 3U);
  for (const Json& chunk : chunks.all) {
    EXPECT_EQ(chunk["id"], chunks.all.front()["id"]);
    EXPECT_EQ(chunk["created"], chunks.all.front()["created"]);
    EXPECT_EQ(chunk["model"], "demo");
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  }
}

// B52: usage exactly once and only when asked for, with the other chunks' id, model and time.
TEST_F(ServerTest, UsageIsOneLastChunkWhenAskedFor) {
  start();
  const auto reply = chat(user(R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_TRUE(reply);
  const Chunks chunks = parse_chunks(*reply);
  size_t empty = 0;
  for (const Json& chunk : chunks.all) empty += chunk["choices"].empty() ? 1 : 0;
  EXPECT_EQ(empty, 1U);
  const Json& last = chunks.all.back();
  EXPECT_TRUE(last["choices"].empty());
  EXPECT_EQ(last["id"], chunks.all.front()["id"]);
  EXPECT_EQ(last["created"], chunks.all.front()["created"]);
  EXPECT_EQ(last["model"], chunks.all.front()["model"]);
  EXPECT_GT(last["usage"]["prompt_tokens"].get<int>(), 0);
  EXPECT_GT(last["usage"]["completion_tokens"].get<int>(), 0);
  EXPECT_TRUE(chunks.all.front()["usage"].is_null());
  const Chunks plain = parse_chunks(*chat(user(R"("stream":true)")));
  for (const Json& chunk : plain.all) {
    EXPECT_FALSE(chunk.contains("usage"));
    EXPECT_FALSE(chunk["choices"].empty());
  }
}

TEST_F(ServerTest, AnEmptyAnswerStreamsRoleFinishAndUsage) {
  answer_with(std::vector<TokenId>{});
  start();
  const Chunks chunks =
      parse_chunks(*chat(user(R"("stream":true,"stream_options":{"include_usage":true})")));
  EXPECT_TRUE(chunks.done);
  EXPECT_EQ(chunks.content, "");
  EXPECT_EQ(chunks.all.size(), 3U);
  EXPECT_EQ(chunks.all.back()["usage"]["completion_tokens"], 1);
}

TEST_F(ServerTest, ContinuousUsageCountsTokens) {
  start();
  const Chunks chunks = parse_chunks(
      *chat(user(R"("stream":true,"stream_options":{"continuous_usage_stats":true})")));
  EXPECT_EQ(chunks.all.front()["usage"]["completion_tokens"], 0);
  EXPECT_GT(chunks.all[2]["usage"]["completion_tokens"].get<int>(), 1);
}

TEST_F(ServerTest, ThinkingIsApart) {
  answer_with("Think first.</think>Then talk.");
  start();
  const auto reply = chat(user(R"("thinking":{"type":"enabled"})"));
  const Json message = Json::parse(reply->body)["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Think first.");
  EXPECT_EQ(message["content"], "Then talk.");
  EXPECT_GT(
      Json::parse(reply->body)["usage"]["completion_tokens_details"]["reasoning_tokens"].get<int>(),
      1);
}

TEST_F(ServerTest, ToolCallsStreamByNameAndArguments) {
  answer_with(
      "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter "
      "name=\"city\" "
      "string=\"true\">Paris</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
  start();
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object"}}}])";
  const Json whole = Json::parse(chat(user(tools))->body);
  const Json& call = whole["choices"][0]["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "get_weather");
  EXPECT_EQ(call["function"]["arguments"], R"({"city": "Paris"})");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "tool_calls");
  const Chunks chunks = parse_chunks(*chat(user(tools + R"(,"stream":true)")));
  std::string name, arguments, id;
  for (const Json& chunk : chunks.all) {
    const Json& delta = chunk["choices"][0]["delta"];
    if (!delta.contains("tool_calls")) continue;
    const Json& part = delta["tool_calls"][0];
    if (part.contains("id")) {
      id = part["id"].get<std::string>();
      name = part["function"]["name"].get<std::string>();
    }
    arguments += part["function"]["arguments"].get<std::string>();
  }
  EXPECT_EQ(name, "get_weather");
  EXPECT_EQ(id.rfind("call_", 0), 0U);
  EXPECT_EQ(arguments, R"({"city": "Paris"})");
  EXPECT_EQ(chunks.all.back()["choices"][0]["finish_reason"], "tool_calls");
}

// B48 on the wire, for both endpoints: nothing of the stop string, and the engine is told to end.
TEST_F(ServerTest, AStopStringEndsTheAnswerAndTheWork) {
  std::vector<TokenId> ids = card_.tokenizer->encode("alpha beta gamma delta");
  ids.resize(100000, ids.back());
  answer_with(ids);
  script_->decoder_step_us = 200;
  start();
  const auto reply = chat(user(R"("stop":"beta gamma","max_tokens":10000)"));
  const Json answer = Json::parse(reply->body);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "alpha ");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(eventually([&] { return idle(); }, 2s));
  const auto text = post("/v1/completions",
                         R"({"prompt":"x","stop":["beta gamma"],"stream":true,"max_tokens":9000})");
  std::string joined;
  for (const Json& chunk : parse_chunks(*text).all)
    joined += chunk["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(joined, "alpha ");
  EXPECT_TRUE(eventually([&] { return idle(); }, 2s));
}

TEST_F(ServerTest, SeveralChoicesInterleaveAndEachFinishes) {
  start();
  const Chunks chunks = parse_chunks(*chat(user(R"("n":3,"stream":true)")));
  std::map<int, std::string> texts;
  std::map<int, int> finishes;
  for (const Json& chunk : chunks.all) {
    const Json& choice = chunk["choices"][0];
    if (choice["delta"].contains("content"))
      texts[choice["index"]] += choice["delta"]["content"].get<std::string>();
    if (!choice["finish_reason"].is_null()) ++finishes[choice["index"]];
  }
  EXPECT_EQ(texts.size(), 3U);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(texts[i], "Hello there, friend.");
    EXPECT_EQ(finishes[i], 1);
  }
  const Json whole = Json::parse(chat(user(R"("n":3)"))->body);
  EXPECT_EQ(whole["choices"].size(), 3U);
  EXPECT_EQ(whole["choices"][2]["index"], 2);
}

TEST_F(ServerTest, CompletionsTakeTextAndIdsAndCanEcho) {
  start();
  const Json answer = Json::parse(
      post("/v1/completions", R"({"prompt":"Once","echo":true,"return_token_ids":true})")->body);
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], "OnceHello there, friend.");
  EXPECT_EQ(answer["choices"][0]["token_ids"].back(), 1);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":[5,6]})")->status, 200);
}

TEST_F(ServerTest, ModelsProbesAndMetrics) {
  start();
  const Json models = Json::parse(test::get(port(), "/v1/models")->body);
  EXPECT_EQ(models["data"][0]["id"], "demo");
  EXPECT_EQ(test::get(port(), "/v1/models/deepseek-flash")->status, 200);
  EXPECT_EQ(test::get(port(), "/v1/models/other")->status, 404);
  EXPECT_EQ(test::get(port(), "/health")->status, 200);
  EXPECT_EQ(test::get(port(), "/ready")->status, 200);
  EXPECT_TRUE(Json::parse(test::get(port(), "/version")->body).contains("version"));
  chat(user());
  EXPECT_EQ(test::get(port(), "/no/such/path")->status, 404);
  const auto metrics = test::get(port(), "/metrics");
  EXPECT_THAT(metrics->headers.at("content-type"), HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics->body,
              HasSubstr(R"(cedar_gateway_http_requests_total{code="200",route="chat"} 1)"));
  EXPECT_THAT(metrics->body, HasSubstr(R"(cedar_gateway_responses_total{outcome="completed"} 1)"));
  EXPECT_THAT(metrics->body, HasSubstr("cedar_gateway_time_to_first_token_seconds_count 1"));
  EXPECT_THAT(metrics->body, HasSubstr("cedar_ready 1"));
}

// B62: what clients send never becomes a label.
TEST_F(ServerTest, RandomPathsAndModelsMakeOneSeries) {
  start();
  for (int i = 0; i < 50; ++i) {
    test::get(port(), "/random/" + std::to_string(i));
    chat(user(R"("model":"m)" + std::to_string(i) + "\""));
  }
  const std::string text = test::get(port(), "/metrics")->body;
  EXPECT_THAT(text,
              HasSubstr(R"(cedar_gateway_http_requests_total{code="404",route="unknown"} 50)"));
  EXPECT_THAT(text, HasSubstr(R"(cedar_gateway_http_requests_total{code="404",route="chat"} 50)"));
  EXPECT_THAT(text, testing::Not(HasSubstr("random")));
}

TEST_F(ServerTest, TokenizeAndDetokenizeAreInverse) {
  start();
  const Json tokens = Json::parse(post("/tokenize", R"({"prompt":"Hello there"})")->body);
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  const Json text =
      Json::parse(post("/detokenize", Json{{"tokens", tokens["tokens"]}}.dump())->body);
  EXPECT_EQ(text["prompt"], "Hello there");
  EXPECT_EQ(Json::parse(post("/tokenize", user())->body)["tokens"][0], 0);
  EXPECT_EQ(post("/tokenize", "{}")->status, 400);
  EXPECT_EQ(post("/detokenize", R"({"tokens":[99999]})")->status, 400);
}

TEST_F(ServerTest, ThePageIsOneDocumentThatLetsNothingElseIn) {
  start();
  const auto page = test::get(port(), "/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page->headers.at("x-content-type-options"), "nosniff");
  EXPECT_EQ(page->headers.at("cache-control"), "no-cache");
  const std::string policy = page->headers.at("content-security-policy");
  EXPECT_THAT(policy, HasSubstr("default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(policy, testing::Not(HasSubstr("unsafe")));
  EXPECT_EQ(page->body.rfind("<!doctype html>", 0), 0U);
  EXPECT_THAT(page->body, HasSubstr("</html>"));
  for (const char* outside : {"<script src", "<link rel=\"stylesheet", "@import", "url(http"}) {
    EXPECT_THAT(page->body, testing::Not(HasSubstr(outside)));
  }
}

TEST_F(ServerTest, AClientThatHasThePageIsToldSoInFewBytes) {
  start();
  test::Socket socket(port());
  socket.send(test::get_text("/"));
  const std::string etag = test::read_reply(socket)->headers.at("etag");
  const std::string again = "GET / HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: ";
  for (const std::string& known : {etag, "W/" + etag, "\"other\", " + etag}) {
    socket.send(again + known + "\r\n\r\n");
    const auto head = test::read_head(socket);
    ASSERT_TRUE(head);
    EXPECT_EQ(head->status, 304) << known;
    EXPECT_EQ(head->headers.at("etag"), etag);
    EXPECT_EQ(head->headers.count("content-length"), 0U);  // or the next answer could not be found
  }
  socket.send(again + "\"other\"\r\n\r\n");
  EXPECT_EQ(test::read_reply(socket)->status, 200);
}

TEST_F(ServerTest, WrongMethodsAndPaths) {
  start();
  const auto wrong = test::get(port(), "/v1/chat/completions");
  EXPECT_EQ(wrong->status, 405);
  EXPECT_EQ(wrong->headers.at("allow"), "POST");
  EXPECT_EQ(post("/v1/models", "{}")->status, 405);
  EXPECT_EQ(test::get(port(), "/v1/stream")->status, 426);
  const Json error = Json::parse(post("/nowhere", "{}")->body);
  EXPECT_EQ(error["error"]["type"], "not_found_error");
}

TEST_F(ServerTest, TargetsMayBeAbsoluteAndHostIsRequired) {
  start();
  const auto reply = [&](const std::string& text) {
    test::Socket socket(port());
    socket.send(text);
    return *test::read_reply(socket);
  };
  EXPECT_EQ(reply("GET http://x:1/health?probe=1 HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
  EXPECT_EQ(reply("GET HTTP://x HTTP/1.1\r\nHost: localhost\r\n\r\n").body,
            test::get(port(), "/")->body);
  EXPECT_EQ(reply("GET /http://x/health HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 404);
  const auto hostless = reply("GET /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(hostless.status, 400);
  EXPECT_EQ(hostless.headers.at("connection"), "close");
  EXPECT_THAT(hostless.body, HasSubstr("Host"));
  EXPECT_EQ(reply("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: y\r\n\r\n").status, 400);
  EXPECT_EQ(reply("GET /health HTTP/1.0\r\n\r\n").status, 200);
}

TEST_F(ServerTest, ErrorsHaveStatusTypeAndParam) {
  start();
  const auto reply = chat(user(R"("temperature":9)"));
  EXPECT_EQ(reply->status, 400);
  const Json error = Json::parse(reply->body)["error"];
  EXPECT_EQ(error["param"], "temperature");
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["code"], "invalid_request_error");
  EXPECT_EQ(chat("nonsense")->status, 400);
  EXPECT_EQ(chat("\xff\xfe")->status, 400);
  EXPECT_EQ(chat(user(R"("model":"other")"))->status, 404);
  EXPECT_EQ(chat(user(R"("stream":true,"max_tokens":1000000)"))->status, 400);  // before any event
  EXPECT_EQ(chat(user(R"("unknown_field":{"a":[1,2]},"user":"u")"))->status, 200);
}

TEST_F(ServerTest, AFullServerSaysWhenToComeBack) {
  script_->sequences = 1;
  script_->decoder_step_us = 1000;
  router_.max_queued = 0;
  answer_endlessly();
  start();
  test::Socket first(port());
  first.send(test::post_text("/v1/chat/completions", user(R"("stream":true,"max_tokens":4000)")));
  ASSERT_TRUE(first.take_until("role"));
  const auto refused = chat(user(R"("stream":true)"));
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->headers.at("retry-after"), "1");
  EXPECT_EQ(Json::parse(refused->body)["error"]["type"], "overloaded_error");
}

TEST_F(ServerTest, AFailureAfterTheFirstByteIsAnErrorEvent) {
  script_->decoder_step_us = 1000;
  stages_.max_restarts = 0;  // else the answer would go on
  answer_endlessly();
  start();
  test::Socket socket(port());
  socket.send(test::post_text("/v1/chat/completions", user(R"("stream":true,"max_tokens":4000)")));
  ASSERT_TRUE(socket.take_until("word"));
  script_->decoder_throws = true;
  const auto tail = socket.take_until("[DONE]");
  ASSERT_TRUE(tail);
  EXPECT_THAT(*tail, HasSubstr(R"("type":"overloaded_error")"));
  EXPECT_THAT(*tail, HasSubstr("the decoder"));
}

TEST_F(ServerTest, TheRequestsDeadlineIs504) {
  options_.http.request_timeout = 50ms;
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  const auto reply = chat(user(R"("max_tokens":4000)"));
  EXPECT_EQ(reply->status, 504);
  EXPECT_EQ(Json::parse(reply->body)["error"]["type"], "timeout_error");
}

// B54, B17: a client that leaves stops the work, before and after its first token, streaming or not.
TEST_F(ServerTest, AClientThatLeavesStopsTheWork) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  {
    test::Socket streaming(port());
    streaming.send(
        test::post_text("/v1/chat/completions", user(R"("stream":true,"max_tokens":4000)")));
    ASSERT_TRUE(streaming.take_until("word"));
  }
  EXPECT_TRUE(eventually([&] { return idle(); }, 1s));
  {
    test::Socket waiting(port());
    waiting.send(test::post_text("/v1/chat/completions", user(R"("max_tokens":4000)")));
    ASSERT_TRUE(eventually([&] { return system_->client().stats().decoder_sequences == 1; }));
    waiting.reset();
  }
  EXPECT_TRUE(eventually([&] { return idle(); }, 1s));
  script_->encoder_step_us = 20000;
  script_->chunk_tokens = 1;
  {
    test::Socket reading(port());
    reading.send(test::post_text("/v1/chat/completions", user(R"("stream":true)")));
    ASSERT_TRUE(eventually([&] { return system_->client().stats().encoder_requests == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return idle(); }, 1s));
  EXPECT_THAT(test::get(port(), "/metrics")->body,
              HasSubstr(R"(cedar_gateway_responses_total{outcome="cancelled"} 3)"));
}

TEST_F(ServerTest, KeepAliveServesRequestsInOrder) {
  start();
  test::Socket socket(port());
  for (int i = 0; i < 3; ++i) {
    socket.send(test::post_text("/v1/chat/completions", user(R"("stream":true)")));
    const auto reply = test::read_reply(socket);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->headers.at("connection"), "keep-alive");
  }
  // Pipelined: sent at once, answered one after the other.
  socket.send(test::get_text("/health") + test::post_text("/v1/chat/completions", user()) +
              test::get_text("/version"));
  EXPECT_THAT(test::read_reply(socket)->body, HasSubstr("ok"));
  EXPECT_THAT(test::read_reply(socket)->body, HasSubstr("friend"));
  EXPECT_THAT(test::read_reply(socket)->body, HasSubstr("version"));
}

TEST_F(ServerTest, OldClientsAndClosingOnes) {
  start();
  test::Socket old(port());
  const std::string body = user(R"("stream":true)");
  old.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
           "\r\n\r\n" + body);
  const auto reply = test::read_reply(old);
  EXPECT_EQ(reply->headers.count("transfer-encoding"), 0U);
  EXPECT_TRUE(parse_chunks(*reply).done);
  test::Socket closing(port());
  closing.send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(test::read_reply(closing)->headers.at("connection"), "close");
  EXPECT_TRUE(closing.closed_by_peer(1s));
  test::Socket head(port());
  head.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(test::read_head(head)->status, 200);
  EXPECT_EQ(head.take_rest(), "");
}

TEST_F(ServerTest, RequestIdsAreEchoedWhenTheyAreClean) {
  start();
  test::Socket socket(port());
  socket.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: abc-123\r\n\r\n");
  EXPECT_EQ(test::read_reply(socket)->headers.at("x-request-id"), "abc-123");
  socket.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: has blanks\r\n\r\n");
  EXPECT_EQ(test::read_reply(socket)->headers.count("x-request-id"), 0U);
}

TEST_F(ServerTest, BodiesOverTheLimitAreRefusedBeforeTheyAreRead) {
  options_.http.max_body_bytes = 2000;
  start();
  test::Socket socket(port());
  socket.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
      "1000000\r\n\r\nabc");
  const auto reply = test::read_reply(socket);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 413);
  EXPECT_TRUE(Json::parse(reply->body).contains("error"));
  test::Socket chunked(port());
  chunked.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\n\r\n");
  for (int i = 0; i < 30; ++i) chunked.send("64\r\n" + std::string(100, 'x') + "\r\n");
  EXPECT_EQ(test::read_reply(chunked)->status, 413);
}

TEST_F(ServerTest, HeadersOverTheLimitAndBrokenRequests) {
  start();
  test::Socket large(port());
  large.send("GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(20000, 'a') +
             "\r\n\r\n");
  EXPECT_EQ(test::read_reply(large)->status, 431);
  test::Socket broken(port());
  broken.send("NOT HTTP AT ALL\r\n\r\n");
  EXPECT_EQ(test::read_reply(broken)->status, 400);
  EXPECT_EQ(test::get(port(), "/health")->status, 200);
}

TEST_F(ServerTest, SlowHeadersAndIdleConnectionsAreClosed) {
  options_.http.header_timeout = 60ms;
  options_.http.idle_timeout = 60ms;
  options_.http.body_timeout = 60ms;
  start();
  test::Socket slow(port());
  slow.send("GET /hea");
  const auto reply = test::read_reply(slow);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 408);
  EXPECT_TRUE(slow.closed_by_peer(1s));
  test::Socket idle(port());
  EXPECT_TRUE(idle.closed_by_peer(1s));
  test::Socket half(port());
  half.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(test::read_reply(half)->status, 408);
}

TEST_F(ServerTest, ExpectContinueIsAnswered) {
  start();
  test::Socket socket(port());
  const std::string body = user();
  socket.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: "
      "100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(test::read_head(socket)->status, 100);
  socket.send(body);
  EXPECT_EQ(test::read_reply(socket)->status, 200);
}

TEST_F(ServerTest, ASilentStreamGetsComments) {
  options_.http.keep_alive_interval = 20ms;
  script_->encoder_step_us = 60000;
  script_->chunk_tokens = 2;
  start();
  const auto reply = chat(user(R"("stream":true)"));
  EXPECT_THAT(reply->body, HasSubstr(": keep-alive\n\n"));
  EXPECT_TRUE(parse_chunks(*reply).done);
}

// B61: a client that reads nothing is dropped; another one does not notice.
TEST_F(ServerTest, AReaderThatStopsIsDropped) {
  options_.http.max_unsent_bytes = 100000;
  answer_endlessly();
  start();
  test::Socket stuck(port(), 4096);
  stuck.send(test::post_text("/v1/chat/completions", user(R"("stream":true,"max_tokens":16000)")));
  EXPECT_EQ(chat(user(R"("stream":true,"max_tokens":50)"))->status, 200);
  EXPECT_TRUE(eventually([&] {
    return test::get(port(), "/metrics")->body.find("cedar_gateway_slow_readers_total 1") !=
           std::string::npos;
  }));
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

TEST_F(ServerTest, ConnectionsOverTheLimitAreClosed) {
  options_.http.max_connections = 2;
  start();
  test::Socket first(port()), second(port());
  ASSERT_TRUE(eventually([&] { return gateway_->connections() == 2; }));
  test::Socket third(port());
  EXPECT_TRUE(third.closed_by_peer(1s));
  first.close();
  ASSERT_TRUE(eventually([&] { return gateway_->connections() == 1; }));
  EXPECT_EQ(test::get(port(), "/health")->status, 200);
}

TEST_F(ServerTest, AddressesThatCannotBeUsedAreNamed) {
  start();
  GatewayOptions options;
  options.http.port = port();
  const auto taken = Gateway::start(options, card_, system_->client(), *metrics_);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Errc::io_error);
  EXPECT_THAT(taken.error().context, HasSubstr(std::to_string(port())));
  options.http.host = "nowhere.invalid";
  EXPECT_EQ(Gateway::start(options, card_, system_->client(), *metrics_).error().code,
            Errc::invalid_argument);
}

// B75: an ordered stop while a hundred streams run.
TEST_F(ServerTest, AServerThatStopsAnswersProbesAndRefusesWork) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  test::Socket running(port());
  running.send(test::post_text("/v1/chat/completions", user(R"("stream":true,"max_tokens":8000)")));
  ASSERT_TRUE(running.take_until("word"));
  gateway_->begin_stop(10s);
  EXPECT_EQ(test::get(port(), "/ready")->status, 503);
  EXPECT_EQ(test::get(port(), "/health")->status, 200);
  const auto refused = chat(user());
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->headers.at("retry-after"), "1");
  EXPECT_EQ(test::WebSocket(port()).head().status, 503);
  EXPECT_TRUE(running.take_until("word"));
  const uint16_t at = port();
  system_->drain(0ms);
  EXPECT_TRUE(running.take_until("[DONE]"));
  gateway_->finish_stop(5s);
  EXPECT_FALSE(test::Socket(at).connected());
}

TEST_F(ServerTest, StoppingEndsEveryStreamWithAnEvent) {
  script_->sequences = 100;
  script_->blocks = 100 * 100;
  script_->decoder_step_us = 2000;
  answer_endlessly();
  start();
  std::vector<std::unique_ptr<test::Socket>> sockets;
  for (int i = 0; i < 100; ++i) {
    sockets.push_back(std::make_unique<test::Socket>(port()));
    sockets.back()->send(
        test::post_text("/v1/chat/completions", user(R"("stream":true,"max_tokens":4000)")));
  }
  for (const auto& socket : sockets) ASSERT_TRUE(socket->take_until("word"));
  gateway_->begin_stop(5s);
  system_->drain(10ms);
  gateway_->finish_stop(5s);
  for (const auto& socket : sockets) {
    const auto tail = socket->take_until("[DONE]");
    ASSERT_TRUE(tail);
    EXPECT_THAT(*tail, HasSubstr("the server stopped"));
    EXPECT_TRUE(socket->closed_by_peer(1s));
  }
}

}  // namespace
}  // namespace cedar::gateway
