// How much clients may ask of the server at once, and how slowly they may read.

#include <thread>

#include "tests/gateway/server_fixture.h"

namespace cedar::gateway {
namespace {

using test::eventually;
using testing::HasSubstr;
using namespace std::chrono_literals;

class LimitsTest : public ServerTest {
 protected:
  static std::string tokenize_body(size_t bytes) {
    return Json{{"prompt", std::string(bytes, 'w')}}.dump();
  }
  std::string slow_readers() {
    const std::string text = test::get(port(), "/metrics")->body;
    const size_t at = text.find("\ncedar_gateway_slow_readers_total ") + 1;
    return text.substr(at, text.find('\n', at) - at);
  }
};

TEST_F(LimitsTest, BodiesOfAllConnectionsTogetherAreBounded) {
  options_.http.max_body_bytes = 400000;
  options_.http.max_bodies_bytes = 400000;
  options_.stream.max_message_bytes = 400000;
  start();
  const std::string request = test::post_text("/tokenize", tokenize_body(390000));
  auto first = std::make_unique<test::Socket>(port());
  first->send(std::string_view(request).substr(0, 385000));
  // Every answer takes the server past all sockets that have bytes.
  for (int i = 0; i < 20; ++i) ASSERT_EQ(test::get(port(), "/health")->status, 200);
  const auto refused = post("/tokenize", tokenize_body(390000));
  ASSERT_EQ(refused->status, 503);
  EXPECT_EQ(refused->headers.at("retry-after"), "1");
  EXPECT_EQ(Json::parse(refused->body)["error"]["type"], "overloaded_error");
  EXPECT_EQ(post("/tokenize", tokenize_body(10))->status, 200);  // small ones pass
  // A message is a body, too.
  {
    test::WebSocket socket(port());
    ASSERT_THAT(*socket.read(), HasSubstr("session.created"));
    socket.send(R"({"type":"ping","nonce":"n-1","padding":")" + std::string(390000, 'x') + R"("})");
    EXPECT_THAT(*socket.read(), HasSubstr("overloaded_error"));
    EXPECT_FALSE(socket.read());
    EXPECT_EQ(socket.close_code(), 1013);
  }
  first->send(std::string_view(request).substr(385000));
  EXPECT_EQ(test::read_reply(*first)->status, 200);
  // What was read is given back, also by clients that left.
  first = std::make_unique<test::Socket>(port());
  first->send(std::string_view(request).substr(0, 385000));
  first.reset();
  EXPECT_TRUE(eventually([&] { return gateway_->connections() == 0; }));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(post("/tokenize", tokenize_body(390000))->status, 200);
    test::WebSocket socket(port());
    ASSERT_THAT(*socket.read(), HasSubstr("session.created"));
    socket.send(R"({"type":"ping","nonce":"n-1","padding":")" + std::string(390000, 'x') + R"("})");
    EXPECT_THAT(*socket.read(), HasSubstr("pong"));
    socket.socket().reset();
  }
}

// Whoever holds the whole budget keeps large bodies out, for as long as a body may take, and no ordinary ones.
TEST_F(LimitsTest, AMessageWithoutEndIsEnded) {
  options_.http.max_body_bytes = 400000;
  options_.http.max_bodies_bytes = 400000;
  options_.http.body_timeout = 300ms;
  start();
  test::WebSocket socket(port());
  ASSERT_THAT(*socket.read(), HasSubstr("session.created"));
  std::string opening = test::WebSocket::frame_text(1, std::string(390000, 'x'));
  opening[0] = 1;  // of a message that goes on
  socket.socket().send(opening);
  EXPECT_EQ(post("/tokenize", tokenize_body(20000))->status, 200);
  EXPECT_FALSE(socket.read());
  EXPECT_EQ(socket.close_code(), 1013);
  EXPECT_EQ(post("/tokenize", tokenize_body(390000))->status, 200);
}

TEST_F(LimitsTest, AnswersThatNobodyReadsAreBounded) {
  options_.http.max_body_bytes = 400000;
  options_.http.max_bodies_bytes = 400000;  // and 3.2 MB of answers
  start();
  const std::string request = test::post_text("/tokenize", tokenize_body(390000));
  const size_t answer = post("/tokenize", tokenize_body(390000))->body.size();
  ASSERT_GT(answer, 400000U);
  // One after the other, so that no body waits for another: whoever is refused is refused because of answers.
  std::vector<std::unique_ptr<test::Socket>> readers;
  std::vector<int> statuses;
  for (int i = 0; i < 10; ++i) {
    readers.push_back(std::make_unique<test::Socket>(port(), 4096));
    readers.back()->send(request);
    const auto head = test::read_head(*readers.back());
    ASSERT_TRUE(head);
    statuses.push_back(head->status);
  }
  EXPECT_EQ(statuses.front(), 200);
  EXPECT_EQ(statuses.back(), 503);
  readers.clear();
  EXPECT_TRUE(eventually([&] { return post("/tokenize", tokenize_body(390000))->status == 200; }));
}

// What the parser takes for "no body" would make the body the next request, in the name of whoever the proxy in front
// thinks it serves.
TEST_F(LimitsTest, ABodyWhoseEndIsUnclearIsRefusedWithAllThatFollows) {
  start();
  const std::string hidden = "GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const char* codings[] = {
      "Transfer-Encoding: xchunked\r\n",
      "Transfer-Encoding: gzip\r\n",
      "Transfer-Encoding: identity\r\n",
      "Transfer-Encoding: chunked, identity\r\n",
      "Transfer-Encoding: chunked, gzip\r\n",
      "Transfer-Encoding: gzip, chunked\r\n",
      "Transfer-Encoding: chunked, chunked\r\n",
      "Transfer-Encoding: \"chunked\"\r\n",
      "Transfer-Encoding: chunked;q=1\r\n",
      "Transfer-Encoding:\r\n",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n",
      "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
      "Transfer-Encoding: gzip\r\nContent-Length: 4\r\n",
      "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
  };
  for (const char* request : {"GET /health HTTP/1.1\r\nHost: localhost\r\n",
                              "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n",
                              "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n"}) {
    for (const char* coding : codings) {
      SCOPED_TRACE(std::string(request) + coding);
      test::Socket socket(port());
      socket.send(std::string(request) + coding + "\r\n" + hidden);
      const auto reply = test::read_reply(socket);
      ASSERT_TRUE(reply);
      EXPECT_EQ(reply->status, 400);
      EXPECT_EQ(reply->headers.at("connection"), "close");
      EXPECT_EQ(Json::parse(reply->body)["error"]["type"], "invalid_request_error");
      socket.end_sending();
      EXPECT_EQ(socket.take_rest(), "");
    }
  }
  test::Socket old(port());
  old.send("POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden);
  EXPECT_EQ(test::read_reply(old)->status, 400);
  test::Socket good(port());
  good.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding:  Chunked \r\n\r\n"
      "e\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n" +
      hidden);
  EXPECT_EQ(test::read_reply(good)->status, 200);
  EXPECT_EQ(test::read_reply(good)->status, 200);
}

// A short text may stand for very many values.
TEST_F(LimitsTest, ValuesAndDepthOfABodyAreBounded) {
  options_.http.max_body_bytes = 8 << 20;
  start();
  std::string many = R"({"prompt":[)";
  for (int i = 0; i < 1500001; ++i) many += "1,";
  many.back() = ']';
  const auto values = post("/v1/completions", many + "}");
  EXPECT_EQ(values->status, 400);
  EXPECT_THAT(values->body, HasSubstr("more than 1500000 values"));
  const auto depth = chat(R"({"messages":)" + std::string(200, '[') + std::string(200, ']') + "}");
  EXPECT_EQ(depth->status, 400);
  EXPECT_THAT(depth->body, HasSubstr("nested deeper than 128"));
}

TEST_F(LimitsTest, ComplaintsAboutJsonAreOurOwnWords) {
  start();
  const auto message = [&](std::string_view body) {
    return Json::parse(chat(body)->body)["error"]["message"].get<std::string>();
  };
  for (const char* body : {R"({"a" 1})", R"({"a":)", R"({"a":1e999})", "{\"a\":\"\xff\"}", "x"}) {
    EXPECT_THAT(message(body), testing::StartsWith("not valid JSON: "));
    EXPECT_THAT(message(body), testing::Not(HasSubstr("json.exception")));
  }
  EXPECT_THAT(message(R"({"a" 1})"), HasSubstr("6"));  // the byte
}

TEST_F(LimitsTest, ASlowReaderIsServedAsLongAsItReads) {
  options_.http.write_timeout = 300ms;
  start();
  test::Socket slow(port(), 4096);
  slow.send(test::post_text("/tokenize", Json{{"prompt", std::string(500000, '~')}}.dump()));
  const auto head = test::read_head(slow);
  ASSERT_TRUE(head);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(60ms);
    ASSERT_TRUE(slow.read_more());
  }
  EXPECT_TRUE(slow.take(std::stoul(head->headers.at("content-length"))));
  EXPECT_EQ(slow_readers(), "cedar_gateway_slow_readers_total 0");
}

TEST_F(LimitsTest, AReaderThatTakesNothingIsDropped) {
  options_.http.write_timeout = 100ms;
  start();
  test::Socket stuck(port(), 4096);
  stuck.send(test::post_text("/tokenize", Json{{"prompt", std::string(500000, '~')}}.dump()));
  EXPECT_TRUE(eventually([&] { return slow_readers() == "cedar_gateway_slow_readers_total 1"; }));
  EXPECT_TRUE(eventually([&] { return gateway_->connections() == 0; }));
}

}  // namespace
}  // namespace cedar::gateway
