// `cedar chat` against a server that a test plays: what the real one never sends, and what it sends late.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/websocket/stream.hpp>

#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "tests/support/program.h"
#include "tests/support/temp_directory.h"

namespace cedar {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using test::Program;
using test::ProgramResult;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kCreated = R"({"type":"response.created","response_id":"r1"})";
constexpr const char* kInProgress = R"({"type":"response.in_progress","response_id":"r1"})";

std::string delta(const std::string& json_text) {
  return R"({"type":"response.content.delta","response_id":"r1","delta":")" + json_text + "\"}";
}

std::string done(const std::string& status, int64_t read, int64_t written) {
  return R"({"type":"response.done","response_id":"r1","status":")" + status +
         R"(","usage":{"prompt_tokens":)" + std::to_string(read) + R"(,"completion_tokens":)" +
         std::to_string(written) + "}}";
}

/// The server's side of the one connection.
class Peer {
 public:
  explicit Peer(asio::ip::tcp::socket socket) : ws_(std::move(socket)) {}
  void accept() {
    beast::flat_buffer bytes;
    beast::http::request<beast::http::string_body> request;
    beast::http::read(ws_.next_layer(), bytes, request);
    target = std::string(request.target());
    host = std::string(request[beast::http::field::host]);
    ws_.accept(request);
  }
  std::string read() {
    beast::flat_buffer bytes;
    ws_.read(bytes);
    return {static_cast<const char*>(bytes.data().data()), bytes.size()};
  }
  void send(const std::string& frame) { ws_.write(asio::buffer(frame)); }
  void send_binary(const std::string& bytes) {
    ws_.binary(true);
    send(bytes);
  }
  void close(uint16_t code) { ws_.close(static_cast<beast::websocket::close_code>(code)); }
  /// Frames sent while it is on leave together.
  void hold(int on) {
    setsockopt(ws_.next_layer().native_handle(), IPPROTO_TCP, TCP_CORK, &on, sizeof on);
  }
  /// Until the client goes, which ends the connection with an exception.
  void read_to_the_end() {
    while (true) read();
  }

  std::string target, host;

 private:
  beast::websocket::stream<asio::ip::tcp::socket> ws_;
};

/// Accepts one client after another in a thread of its own. REQUIRES: the clients' program ends first.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(Peer&)> part, const char* address = "127.0.0.1")
      : FakeServer(std::vector<std::function<void(Peer&)>>{std::move(part)}, address) {}
  /// A part for each client.
  explicit FakeServer(std::vector<std::function<void(Peer&)>> parts,
                      const char* address = "127.0.0.1")
      : address_(address), parts_(std::move(parts)) {
    const auto where = asio::ip::make_address(address);
    boost::system::error_code error;
    acceptor_.open(where.is_v6() ? asio::ip::tcp::v6() : asio::ip::tcp::v4(), error);
    if (!error) acceptor_.bind({where, 0}, error);
    if (!error) acceptor_.listen(1, error);
    listens_ = !error;
    if (!listens_) return;
    thread_ = std::thread([this] {
      for (const auto& part : parts_) serve(part);
    });
  }
  ~FakeServer() {
    if (!listens_) return;
    ::shutdown(acceptor_.native_handle(), SHUT_RDWR);  // nobody came
    thread_.join();
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  bool listens() const { return listens_; }
  std::string authority() const {
    const std::string port = std::to_string(acceptor_.local_endpoint().port());
    return (address_.find(':') == std::string::npos ? address_ : '[' + address_ + ']') + ':' + port;
  }
  std::vector<std::string> chat(std::vector<std::string> more = {"Hi"}) const {
    std::vector<std::string> all = {CEDAR_PROGRAM, "chat", "--url", "ws://" + authority()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

 private:
  void serve(const std::function<void(Peer&)>& part) {
    try {
      Peer peer(acceptor_.accept());
      peer.accept();
      part(peer);
      peer.read_to_the_end();
    } catch (const std::exception&) {
      // The client has gone.
    }
  }

  std::string address_;
  std::vector<std::function<void(Peer&)>> parts_;
  asio::io_context io_;
  asio::ip::tcp::acceptor acceptor_{io_};
  bool listens_ = false;
  std::thread thread_;
};

ProgramResult chat_with(const std::function<void(Peer&)>& answer) {
  FakeServer server([&](Peer& peer) {
    peer.read();
    answer(peer);
  });
  EXPECT_TRUE(server.listens());
  return test::run_program(server.chat());
}

TEST(Chat, AServerThatBreaksTheProtocolIsAnError) {
  const std::vector<std::string> frames = {
      "{",
      "[]",
      "null",
      R"({"type":3})",
      R"({"type":"response.created","response_id":{}})",
      R"({"type":"response.content.delta","delta":7})",
      R"({"type":"error","error":"text"})",
      R"({"type":"error"})",
      R"({"type":"response.done","status":7})",
      R"({"type":"session.created","limits":7})",
      R"({"type":"session.created","limits":{"max_message_bytes":"x"}})",
      R"({"type":"response.done","status":"completed","usage":[]})",
      R"({"type":"response.done","status":"completed","usage":{"prompt_tokens":"x"}})",
      R"({"type":"response.done","status":"failed"})",
      std::string(100000, '['),
  };
  for (const std::string& frame : frames) {
    const auto result = chat_with([&](Peer& peer) { peer.send(frame); });
    EXPECT_EQ(result.status, 1) << frame.substr(0, 80);
    EXPECT_THAT(result.err, HasSubstr("breaks the protocol")) << frame.substr(0, 80);
    EXPECT_THAT(result.err, Not(HasSubstr("json.exception")));
  }
  const auto binary = chat_with([](Peer& peer) { peer.send_binary("abc"); });
  EXPECT_EQ(binary.status, 1);
  EXPECT_THAT(binary.err, HasSubstr("binary"));
}

TEST(Chat, AMessageThatTheServerDoesNotTakeIsNotSent) {
  bool sent = false;
  FakeServer server([&](Peer& peer) {
    peer.send(R"({"type":"session.created","limits":{"max_message_bytes":70000}})");
    peer.read();
    sent = true;
  });
  const auto result = test::run_program(server.chat({std::string(70000, 'a')}));
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err,
              testing::ContainsRegex("message too long: 70[0-9]+ bytes, the server takes 70000"));
  EXPECT_FALSE(sent);
}

TEST(Chat, AServerThatClosesBecauseOfTheLengthIsUnderstood) {
  const auto result = chat_with([](Peer& peer) { peer.close(1009); });
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("message too long: the server closed the connection (1009)"));
}

TEST(Chat, TheServerDoesNotRuleTheTerminal) {
  const std::string evil = "a\\u001b]0;x\\u0007\\u009b2Jb\\r";
  const auto answer = chat_with([&](Peer& peer) {
    peer.send(kCreated);
    peer.send(delta(evil));
    peer.send(done("completed", 1, 1));
  });
  EXPECT_EQ(answer.status, 0) << answer.err;
  EXPECT_EQ(answer.out, "a\u241B]0;x\u2407\uFFFD2Jb\u240D\n");
  const auto error = chat_with(
      [&](Peer& peer) { peer.send(R"({"type":"error","error":{"message":")" + evil + "\"}}"); });
  EXPECT_EQ(error.status, 1);
  EXPECT_THAT(error.err, HasSubstr("a\u241B]0;"));
  EXPECT_THAT(error.err, Not(HasSubstr("\x1b")));
}

TEST(Chat, AnAnswerThatCannotBeWrittenIsAFailure) {
  FakeServer server([](Peer& peer) {
    peer.read();
    peer.send(kCreated);
    peer.send(delta("x"));
    peer.send(done("completed", 1, 1));
  });
  const auto result = test::run_program(
      {"/bin/sh", "-c",
       std::string(CEDAR_PROGRAM) + " chat --url ws://" + server.authority() + " Hi >/dev/full"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("cannot write standard output"));
}

TEST(Chat, TokensThatCameTogetherGiveNoRate) {
  const auto result = chat_with([](Peer& peer) {
    peer.hold(1);
    peer.send(kCreated);
    for (int i = 0; i < 10; ++i) peer.send(delta("x"));
    peer.send(done("completed", 5, 10));
    peer.hold(0);
  });
  EXPECT_EQ(result.out, "xxxxxxxxxx\n");
  EXPECT_THAT(result.err, HasSubstr("5 tokens read, first token after "));
  EXPECT_THAT(result.err, HasSubstr("10 written"));
  // On a busy machine reading them takes long enough to be timed; nine tokens in two milliseconds are the most.
  const size_t rate = result.err.find(" written, ");
  if (rate != std::string::npos) {
    EXPECT_LE(std::atof(result.err.c_str() + rate + 10), 9 / 0.002);
  }
}

/// The figures of an answer that is interrupted after `events`.
ProgramResult interrupted_after(const std::vector<std::string>& events, int64_t read,
                                int64_t written) {
  std::promise<void> requested;
  std::string cancel;
  FakeServer server([&](Peer& peer) {
    peer.read();
    for (const std::string& event : events) peer.send(event);
    requested.set_value();
    cancel = peer.read();
    peer.send(done("cancelled", read, written));
  });
  Program chat(server.chat());
  requested.get_future().wait();
  chat.signal(SIGINT);
  const auto result = chat.finish();
  EXPECT_EQ(cancel, R"({"response_id":"r1","type":"response.cancel"})");
  EXPECT_EQ(result.status, 0) << result.err;
  return result;
}

TEST(Chat, FiguresOfACancelledAnswerSayWhatWasRead) {
  EXPECT_THAT(interrupted_after({kCreated}, 1000, 0).err,
              HasSubstr("[cancelled; prompt of 1000 tokens, not read to its end]"));
  EXPECT_THAT(interrupted_after({kCreated, kInProgress}, 1000, 0).err,
              HasSubstr("[cancelled; 1000 tokens read, nothing written]"));
  EXPECT_THAT(interrupted_after({kCreated, kInProgress, delta("x")}, 1000, 1).err,
              HasSubstr("[cancelled; 1000 tokens read, first token after "));
}

TEST(Chat, AnInterruptBeforeTheServerAcceptsCancelsAsWell) {
  std::promise<void> requested, interrupted;
  FakeServer server([&](Peer& peer) {
    peer.read();
    requested.set_value();
    interrupted.get_future().wait();
    peer.send(kCreated);
    if (peer.read().find("response.cancel") != std::string::npos) {
      peer.send(done("cancelled", 3, 0));
    }
  });
  Program chat(server.chat());
  requested.get_future().wait();
  chat.signal(SIGINT);
  interrupted.set_value();
  const auto result = chat.finish();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("[cancelled; "));
}

TEST(Chat, ASecondInterruptEndsIt) {
  std::promise<void> requested, cancelled;
  FakeServer server([&](Peer& peer) {
    peer.read();
    peer.send(kCreated);
    requested.set_value();
    peer.read();
    cancelled.set_value();
  });
  Program chat(server.chat());
  requested.get_future().wait();
  chat.signal(SIGINT);
  cancelled.get_future().wait();
  chat.signal(SIGINT);
  const auto result = chat.finish();
  EXPECT_EQ(result.status, 130);
  EXPECT_THAT(result.err, HasSubstr("interrupted"));
}

TEST(Chat, AFailedAnswerDoesNotEndTheConversation) {
  FakeServer server([](Peer& peer) {
    peer.read();
    peer.send(kCreated);
    peer.send(
        R"({"type":"response.done","response_id":"r1","status":"failed","error":{"message":"why"}})");
    peer.read();
    peer.send(kCreated);
    peer.send(delta("well"));
    peer.send(done("completed", 1, 1));
  });
  const test::TempDirectory folder;
  const auto result =
      test::run_program(server.chat({"--file", folder.write("text", "document")}), "one\ntwo\n");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("why"));
  EXPECT_THAT(result.out, HasSubstr("well\n"));
}

// Servers end a connection on which nothing happens; who thinks about the next question does not notice.
TEST(Chat, AConnectionThatWasLostBetweenQuestionsIsMadeAnew) {
  std::string asked;
  FakeServer server({[](Peer& peer) {
                       peer.read();
                       peer.send(kCreated);
                       peer.send(delta("first"));
                       peer.send(done("completed", 1, 1));
                       peer.close(4004);
                     },
                     [&](Peer& peer) {
                       asked = peer.read();
                       peer.send(kCreated);
                       peer.send(delta("second"));
                       peer.send(done("completed", 1, 1));
                       peer.read();
                       peer.send(kCreated);
                       peer.close(1011);
                     }});
  const test::TempDirectory folder;
  const auto result = test::run_program(server.chat({"--file", folder.write("text", "document")}),
                                        "one\ntwo\nthree\nfour\n");
  EXPECT_EQ(result.out, "first\nsecond\n\n");
  EXPECT_THAT(asked, HasSubstr(R"({"role":"assistant","content":"first"})"));
  // An answer that had begun is not asked for again.
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("connection lost"));
}

TEST(Chat, ARefusalMayNameAnIdThatWasNotAnnounced) {
  const auto result = chat_with([](Peer& peer) {
    peer.send(R"({"type":"error","response_id":"r7","error":{"message":"too long"}})");
  });
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("too long"));
}

TEST(Chat, AnErrorAboutTheAnswerBeforeDoesNotEndThisOne) {
  const std::string late =
      R"({"type":"error","response_id":"r1","error":{"message":"nothing to cancel"}})";
  FakeServer server([&](Peer& peer) {
    peer.read();
    peer.send(kCreated);
    peer.send(done("completed", 1, 1));
    peer.read();
    peer.send(late);
    peer.send(R"({"type":"response.created","response_id":"r2"})");
    peer.send(late);
    peer.send(R"({"type":"response.content.delta","response_id":"r2","delta":"second"})");
    peer.send(R"({"type":"response.done","response_id":"r2","status":"completed",)"
              R"("usage":{"prompt_tokens":1,"completion_tokens":1}})");
  });
  const test::TempDirectory folder;
  const auto result =
      test::run_program(server.chat({"--file", folder.write("text", "document")}), "one\ntwo\n");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "\nsecond\n");
}

TEST(Chat, AddressesMayBeIPv6AndHaveAQuery) {
  std::string target, host;
  FakeServer server(
      [&](Peer& peer) {
        target = peer.target;
        host = peer.host;
        peer.read();
        peer.send(kCreated);
        peer.send(done("completed", 1, 1));
      },
      "::1");
  if (!server.listens()) GTEST_SKIP() << "this machine has no IPv6";
  const auto result = test::run_program(
      {CEDAR_PROGRAM, "chat", "--url", "ws://" + server.authority() + "?key=a", "Hi"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(target, "/v1/stream?key=a");
  EXPECT_EQ(host, server.authority());
}

TEST(Chat, WrongUseIsExplained) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--max-tokens", "0"}, "--max-tokens: must be an integer in [1, 2147483647], got 0"},
      {{"--max-tokens", "99999999999"}, "in [1, 2147483647], got 99999999999"},
      {{"--temperature", "nan"}, "--temperature: must be a number in [0, 2], got nan"},
      {{"--bogus"}, "--bogus"},
      {{"--url", "ws://::1:80"}, "an IPv6 address must be in brackets"},
  };
  for (const auto& [arguments, words] : cases) {
    std::vector<std::string> all = {CEDAR_PROGRAM, "chat", "Hi"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto result = test::run_program(all);
    EXPECT_EQ(result.status, 2) << words;
    EXPECT_THAT(result.err, HasSubstr(words));
  }
  const test::TempDirectory folder;
  const auto directory = test::run_program({CEDAR_PROGRAM, "chat", "--file", folder.path(), "Hi"});
  EXPECT_EQ(directory.status, 1);
  EXPECT_THAT(directory.err, HasSubstr(folder.path() + ": Is a directory"));
}

}  // namespace
}  // namespace cedar
