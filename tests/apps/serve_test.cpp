// `cedar serve` and `cedar chat` together, as `make run` uses them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <future>

#include "tests/support/eventually.h"
#include "tests/support/program.h"
#include "tests/support/socket_client.h"

namespace cedar {
namespace {

using test::Program;
using test::run_program;
using testing::HasSubstr;

class ServeTest : public testing::Test {
 protected:
  Program server_{{CEDAR_PROGRAM, "serve", "--port", "0", "--threads", "2"}};
  std::string url_;
  uint16_t port_ = 0;

  void SetUp() override {
    ASSERT_TRUE(server_.wait_for_output("context"));
    const std::string& line = server_.output();
    const size_t colon = line.find(':', line.find("http://") + 7);
    port_ = static_cast<uint16_t>(std::stoi(line.substr(colon + 1)));
    url_ = "ws://127.0.0.1:" + std::to_string(port_) + "/v1/stream";
  }
};

TEST_F(ServeTest, ChatAnswersAboutADocument) {
  const std::string document = std::string(CEDAR_SOURCE_DIR) + "/config/demo/sample_document.txt";
  const auto one =
      run_program({CEDAR_PROGRAM, "chat", "--url", url_, "--file", document, "What is E8236?"});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.out, "E8236 queue failed on proxy-32\n");
  EXPECT_THAT(one.err, HasSubstr("tokens read, first token after"));
  const auto several = run_program({CEDAR_PROGRAM, "chat", "--url", url_, "--file", document},
                                   "What is E8236?\nShow error E9118\n");
  EXPECT_EQ(several.out, "E8236 queue failed on proxy-32\nE9118 monitor failed on build-46\n");
  const auto limited =
      run_program({CEDAR_PROGRAM, "chat", "--url", url_, "--max-tokens", "2", "Hello"});
  EXPECT_THAT(limited.err, HasSubstr("incomplete; "));
}

TEST_F(ServeTest, ChatExplainsWhatGoesWrong) {
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "chat", "--url", "http://x", "Hi"}).status, 2);
  const auto refused =
      run_program({CEDAR_PROGRAM, "chat", "--url", url_, "--max-tokens", "99999", "Hi"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("max_tokens"));
  const auto nobody =
      run_program({CEDAR_PROGRAM, "chat", "--url", "ws://127.0.0.1:1/v1/stream", "Hi"});
  EXPECT_EQ(nobody.status, 1);
  EXPECT_THAT(nobody.err, HasSubstr("cannot connect"));
}

// The demo model never learned to reason: it does so for ever, greedily, so the answer does not end by itself.
TEST_F(ServeTest, InterruptingChatCancelsItsResponse) {
  const auto decoder_has = [this](const char* sequences) {
    return test::eventually(
        [&] {
          const auto metrics = test::get(port_, "/metrics");
          return metrics && metrics->body.find(std::string("cedar_decoder_sequences ") + sequences +
                                               '\n') != std::string::npos;
        },
        std::chrono::seconds(60));
  };
  Program chat({CEDAR_PROGRAM, "chat", "--url", url_, "--thinking", "on", "--max-tokens", "16000",
                "once upon a time"});
  ASSERT_TRUE(decoder_has("1"));
  chat.signal(SIGINT);
  const auto result = chat.finish();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("[cancelled; "));
  // The answer is cancelled at once, the decoder learns of it between two steps.
  EXPECT_TRUE(decoder_has("0"));
}

// B75: SIGTERM during live streams: every stream ends properly and the exit status is 0.
TEST_F(ServeTest, SigtermDuringLiveStreamsExitsCleanly) {
  const std::string body =
      R"({"prompt":"once upon a time","stream":true,"max_tokens":8000,"ignore_eos":true})";
  std::vector<std::unique_ptr<test::Socket>> sockets;
  for (int i = 0; i < 8; ++i) {
    sockets.push_back(std::make_unique<test::Socket>(port_));
    sockets.back()->send(test::post_text("/v1/completions", body));
  }
  for (const auto& socket : sockets) ASSERT_TRUE(socket->take_until("\"text\":"));
  // Clients read all the time: the server does not wait for one that has stopped reading.
  std::vector<std::future<bool>> ends;
  for (const auto& socket : sockets) {
    ends.push_back(std::async(std::launch::async, [&socket] {
      return socket->take_until("[DONE]", std::chrono::seconds(30)).has_value();
    }));
  }
  server_.signal(SIGTERM);
  const auto result = server_.finish();
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped"));
  for (auto& end : ends) EXPECT_TRUE(end.get());
}

// The signal is pending before the program begins, so it comes while the model is loaded.
TEST(Serve, ASignalStopsTheLoading) {
  for (const int signal : {SIGTERM, SIGINT}) {
    sigset_t blocked{}, before{};
    sigemptyset(&blocked);
    sigaddset(&blocked, signal);
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
    Program server({CEDAR_PROGRAM, "serve", "--port", "0", "--threads", "1"});
    server.signal(signal);
    ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
    const auto result = server.finish();
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("stopped while it loaded"));
  }
}

TEST(Serve, NumbersOfTheCommandLineAreRefusedByTheirFlag) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--threads", "-5"}, "--threads must be in [0, 1024], got -5"},
      {{"--max-context", "-5"}, "--max-context must be in [0, 2147483647], got -5"},
      {{"--max-sequences", "0"}, "--max-sequences must be in [1, 65536], got 0"},
      {{"--cache-mib", "-1"}, "--cache-mib must be in [0, 2147483647], got -1"},
      {{"--port", "70000"}, "--port must be in [0, 65535], got 70000"},
      {{"--threads", "99999999999999999999"}, "--threads: must be an integer, got 9999999999"},
      {{"--bogus"}, "--bogus"},
  };
  for (const auto& [arguments, words] : cases) {
    std::vector<std::string> all = {CEDAR_PROGRAM, "serve"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto result = run_program(all);
    EXPECT_EQ(result.status, 2) << words;
    EXPECT_THAT(result.err, HasSubstr(words));
  }
}

TEST(Serve, SettingsAreDescribed) {
  const auto help = run_program({CEDAR_PROGRAM, "serve", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_THAT(help.out, HasSubstr("docs/config.md"));
  const auto described = run_program({CEDAR_PROGRAM, "config", "describe"});
  EXPECT_EQ(described.status, 0);
  EXPECT_THAT(described.out, HasSubstr("| `max_sequences` | `8` |"));
  const auto counted = run_program({CEDAR_PROGRAM, "config", "metrics"});
  EXPECT_EQ(counted.status, 0);
  EXPECT_THAT(counted.out, HasSubstr("| `cedar_encoder_rows_total` | counter | rows |"));
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "config"}).status, 2);
}

TEST(Serve, WrongUseIsExplained) {
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "serve", "--config", testing::TempDir()}).status, 2);
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "serve", "--port", "70000"}).status, 2);
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "serve", "--config", "no/such.toml"}).status, 2);
  const std::string path = testing::TempDir() + "/cedar_bad.toml";
  std::ofstream(path) << "[http]\nprot = 1\n";
  const auto bad = run_program({CEDAR_PROGRAM, "serve", "--config", path});
  EXPECT_EQ(bad.status, 2);
  EXPECT_THAT(bad.err, HasSubstr("http.prot is no known setting"));
  const auto model = run_program({CEDAR_PROGRAM, "serve", "--model", "no/such"});
  EXPECT_EQ(model.status, 1);
  EXPECT_THAT(model.err, HasSubstr("no/such"));
}

}  // namespace
}  // namespace cedar
