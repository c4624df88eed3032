// Requests sent ahead of the answers before them, in pieces, and clients that stop sending or leave.

#include <random>
#include <thread>

#include "tests/gateway/server_fixture.h"

namespace cedar::gateway {
namespace {

using test::eventually;
using testing::HasSubstr;
using namespace std::chrono_literals;

// A request that comes in pieces while another one is answered is one request, byte for byte.
TEST_F(ServerTest, RequestsSentAheadInPiecesAreWhole) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  options_.http.io_threads = 2;
  start();
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "w" + std::to_string(i) + " ";
  const std::string ahead = test::post_text("/tokenize", Json{{"prompt", text}}.dump());
  const std::string tokens = post("/tokenize", Json{{"prompt", text}}.dump())->body;
  for (const size_t cut : {size_t{1}, size_t{40}, size_t{9000}, ahead.size() - 1, ahead.size()}) {
    test::Socket socket(port());
    const int64_t steps = script_->decoder_steps;
    socket.send(test::post_text("/v1/chat/completions", user(R"("max_tokens":60)")));
    ASSERT_TRUE(eventually([&] { return script_->decoder_steps > steps; }));
    socket.send(std::string_view(ahead).substr(0, cut));
    ASSERT_EQ(test::read_reply(socket)->status, 200) << cut;
    socket.send(std::string_view(ahead).substr(cut));
    ASSERT_EQ(test::read_reply(socket)->body, tokens) << cut;
    socket.send(test::get_text("/version"));
    ASSERT_THAT(test::read_reply(socket)->body, HasSubstr("version")) << cut;
    EXPECT_FALSE(socket.read_more(5ms)) << "an answer too many";
  }
}

// More than is kept ahead waits in the client's socket; nothing is lost or answered twice.
TEST_F(ServerTest, ManyRequestsSentAheadAreAnsweredOnceEach) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  options_.http.io_threads = 2;
  start();
  test::Socket socket(port());
  std::string requests = test::post_text("/v1/chat/completions", user(R"("max_tokens":60)"));
  for (int i = 0; i < 2000; ++i) {
    requests += "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: r" + std::to_string(i) +
                "\r\n\r\n";
  }
  std::thread sender([&] { socket.send(requests); });
  EXPECT_THAT(test::read_reply(socket)->body, HasSubstr("word"));
  for (int i = 0; i < 2000; ++i) {
    const auto reply = test::read_reply(socket);
    ASSERT_TRUE(reply) << i;
    ASSERT_EQ(reply->headers.at("x-request-id"), "r" + std::to_string(i));
  }
  sender.join();
}

// Random pieces at random times, and clients that leave in between.
TEST_F(ServerTest, PipeliningClientsThatLeaveAnywhereDoNoHarm) {
  script_->decoder_step_us = 200;
  options_.http.io_threads = 2;
  start();
  std::mt19937 random(7);
  const auto pick = [&](size_t below) { return random() % below; };
  for (int round = 0; round < 60; ++round) {
    test::Socket socket(port());
    std::string bytes = test::post_text("/v1/chat/completions", user());
    for (size_t i = 0; i <= pick(4); ++i) {
      bytes +=
          test::post_text("/tokenize", Json{{"prompt", std::string(1 + pick(30000), 'w')}}.dump());
    }
    for (size_t at = 0; at < bytes.size();) {
      const size_t size = std::min(bytes.size() - at, 1 + pick(20000));
      if (!socket.send(std::string_view(bytes).substr(at, size))) break;
      at += size;
      if (pick(3) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(pick(3)));
    }
    if (pick(2) == 0) socket.read_more(1ms);
    if (pick(2) == 0) socket.reset();
  }
  EXPECT_EQ(chat(user())->status, 200);
  EXPECT_TRUE(eventually([&] { return idle() && gateway_->connections() == 0; }));
}

// nc and its like end their side when the request is out.
TEST_F(ServerTest, AClientThatOnlyEndsItsSideGetsShortAnswers) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  test::Socket socket(port());
  socket.send(test::get_text("/health") + test::post_text("/tokenize", R"({"prompt":"Hello"})") +
              test::get_text("/version"));
  socket.end_sending();
  EXPECT_THAT(test::read_reply(socket)->body, HasSubstr("ok"));
  EXPECT_THAT(test::read_reply(socket)->body, HasSubstr("tokens"));
  EXPECT_THAT(test::read_reply(socket)->body, HasSubstr("version"));
  EXPECT_TRUE(socket.closed_by_peer(1s));
  // Of a generation nothing tells this from a client that left.
  test::Socket generation(port());
  generation.send(test::post_text("/v1/chat/completions", user(R"("max_tokens":4000)")));
  ASSERT_TRUE(eventually([&] { return system_->client().stats().decoder_sequences == 1; }));
  generation.end_sending();
  EXPECT_TRUE(eventually([&] { return idle(); }, 1s));
}

TEST_F(ServerTest, TrailersWithoutEndAreRefused) {
  start();
  test::Socket socket(port());
  socket.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;");
  EXPECT_TRUE(socket.send(std::string(40000, 'x')));
  EXPECT_EQ(test::read_reply(socket)->status, 431);
}

}  // namespace
}  // namespace cedar::gateway
