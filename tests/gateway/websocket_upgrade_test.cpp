// From HTTP to WebSocket: who may, and what comes together with the upgrade request.

#include "tests/gateway/stream_fixture.h"

namespace cedar::gateway {
namespace {

using test::eventually;
using test::WebSocket;

TEST_F(StreamTest, TheProtocolMustBeOfferedAndPagesOfOtherOriginsStayOut) {
  start();
  EXPECT_EQ(WebSocket(port(), "").head().status, 400);
  EXPECT_EQ(WebSocket(port(), "other.v1").head().status, 400);
  WebSocket several(port(), "chat, cedar.v1, bearer.x");
  EXPECT_EQ(several.head().headers.at("sec-websocket-protocol"), "cedar.v1");
  EXPECT_EQ(WebSocket(port(), "cedar.v1", "Origin: http://evil.example\r\n").head().status, 403);
  EXPECT_EQ(WebSocket(port(), "cedar.v1", "Origin: http://localhost\r\n").head().status, 101);
  EXPECT_EQ(WebSocket(port(), "cedar.v1", "Origin: HTTPS://localhost\r\n").head().status, 101);
  EXPECT_EQ(WebSocket(port(), "cedar.v1", "Origin: x://localhost\r\n").head().status, 403);
  EXPECT_EQ(WebSocket(port(), "cedar.v1", "Origin: localhost\r\n").head().status, 403);
  EXPECT_EQ(
      WebSocket(port(), "cedar.v1", "Origin: http://localhost\r\nOrigin: http://evil.example\r\n")
          .head()
          .status,
      400);
}

TEST_F(StreamTest, ARefusedHandshakeIsAnsweredLikeAnyError) {
  start();
  const std::string good = WebSocket::upgrade_text();
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    test::Socket socket(port());
    socket.send(text);
    const auto reply = test::read_reply(socket);
    EXPECT_EQ(Json::parse(reply->body)["error"]["type"], "invalid_request_error") << to;
    return *reply;
  };
  const auto version = refused("Version: 13", "Version: 12");
  EXPECT_EQ(version.status, 426);
  EXPECT_EQ(version.headers.at("sec-websocket-version"), "13");
  EXPECT_EQ(refused("Sec-WebSocket-Key", "X-Other").status, 400);
  EXPECT_EQ(refused("25jZQ==", "x").status, 400);
  EXPECT_EQ(refused("Upgrade: websocket", "Upgrade: other").status, 426);
}

TEST_F(StreamTest, MessagesMayComeWithTheUpgrade) {
  start();
  const std::string large =
      R"({"type":"ping","nonce":"n-2","padding":")" + std::string(30000, 'x') + R"("})";
  const std::string opening = WebSocket::upgrade_text() +
                              WebSocket::frame_text(1, R"({"type":"ping","nonce":"n-1"})") +
                              WebSocket::frame_text(1, large);
  for (const size_t cut : {opening.size(), size_t{260}, size_t{1000}}) {
    WebSocket socket(port(), 0, std::string_view(opening).substr(0, cut));
    open(socket);
    socket.socket().send(std::string_view(opening).substr(cut));
    EXPECT_EQ(read_event(socket)["nonce"], "n-1");
    EXPECT_EQ(read_event(socket)["nonce"], "n-2");
    socket.send(create("resp_0001"));
    EXPECT_EQ(read_until(socket, "response.done").back()["status"], "completed");
    socket.send_close();
    EXPECT_FALSE(socket.read());
    EXPECT_EQ(socket.close_code(), 1000);
  }
  EXPECT_TRUE(eventually([&] { return gateway_->connections() == 0; }));
}

TEST_F(StreamTest, AnUpgradeSentAheadOfAnAnswerWaitsForIt) {
  script_->decoder_step_us = 1000;
  answer_endlessly();
  options_.http.io_threads = 2;
  start();
  const std::string ping = WebSocket::frame_text(1, R"({"type":"ping","nonce":"n-1"})");
  const std::string request = test::post_text("/v1/chat/completions", user(R"("max_tokens":60)"));
  for (const bool at_once : {true, false}) {
    const std::string upgrade = WebSocket::upgrade_text() + ping;
    WebSocket socket(port(), 0, at_once ? request + upgrade : request);
    EXPECT_EQ(socket.head().status, 200);
    const auto length = std::stoul(socket.head().headers.at("content-length"));
    ASSERT_TRUE(socket.socket().take(length));
    if (!at_once) socket.socket().send(upgrade);
    socket.read_next_head();
    open(socket);
    EXPECT_EQ(read_event(socket)["nonce"], "n-1");
    socket.send(R"({"type":"ping","nonce":"n-2"})");
    EXPECT_EQ(read_event(socket)["nonce"], "n-2");
  }
  // An interim answer is being written when the upgrade is complete.
  WebSocket patient(port(), "cedar.v1", "Expect: 100-continue\r\n");
  if (patient.head().status == 100) patient.read_next_head();
  open(patient);
}

}  // namespace
}  // namespace cedar::gateway
