// `cedar chat` at the door of a real `cedar serve`: certificates and API keys.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <string>

#include "tests/support/certificates.h"
#include "tests/support/program.h"
#include "tests/support/temp_directory.h"

namespace cedar {
namespace {

using test::Program;
using test::ProgramResult;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kKey = "chat-key-0123456789";
constexpr const char* kLimitedKey = "limited-key-0123456789";
constexpr const char* kVariable = "CEDAR_API_KEY";

/// The demo model behind a port. `settings`: the text of the settings file.
class Server {
 public:
  Server(const test::TempDirectory& folder, const std::string& settings)
      : program_({CEDAR_PROGRAM, "serve", "--port", "0", "--threads", "1", "--config",
                  folder.write("settings.toml", settings)}) {
    EXPECT_TRUE(program_.wait_for_output("context"));
    const std::string& line = program_.output();
    const size_t colon = line.find(':', line.find("://") + 3);
    port_ = line.substr(colon + 1, line.find_first_not_of("0123456789", colon + 1) - colon - 1);
  }
  std::string url(const std::string& scheme, const std::string& host = "127.0.0.1") const {
    return scheme + "://" + host + ':' + port_;
  }

 private:
  Program program_;
  std::string port_;
};

std::vector<std::string> chat_command(const std::string& url,
                                      const std::vector<std::string>& more) {
  std::vector<std::string> all = {CEDAR_PROGRAM, "chat", "--url", url};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

ProgramResult chat(const std::string& url, const std::vector<std::string>& more) {
  return test::run_program(chat_command(url, more));
}

/// What `cedar chat` says of a server that it does not talk to.
std::string refusal(const std::string& url, std::vector<std::string> more = {}) {
  more.push_back("Hi");
  const auto result = chat(url, more);
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("cannot connect to " + url + "/v1/stream: "));
  return result.err;
}

class ChatTls : public testing::Test {
 protected:
  std::string settings(const std::string& name, const std::string& alternatives) const {
    const auto files = authority_.issue(name, alternatives);
    return "[http]\ntls_certificate = \"" + files.certificate + "\"\ntls_key = \"" + files.key +
           "\"\n";
  }

  test::TempDirectory folder_;
  test::Authority authority_{folder_.path(), "authority"};
};

TEST_F(ChatTls, AnswersComeEncrypted) {
  const Server server(folder_, settings("server", "IP:127.0.0.1,DNS:localhost"));
  const std::string document = std::string(CEDAR_SOURCE_DIR) + "/config/demo/sample_document.txt";
  const auto result =
      chat(server.url("wss"), {"--ca", authority_.path(), "--file", document, "What is E8236?"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "E8236 queue failed on proxy-32\n");
  const auto by_name = test::run_program(
      chat_command(server.url("wss", "localhost"), {"--ca", authority_.path(), "--max-tokens", "2",
                                                    "--file", folder_.write("text", "document")}),
      "one\ntwo\n");
  EXPECT_EQ(by_name.status, 0) << by_name.err;
}

// An answer of this temperature may end by itself before the signal; then another one is asked for.
TEST_F(ChatTls, AnInterruptCancels) {
  const Server server(folder_, settings("server", "IP:127.0.0.1"));
  ProgramResult result;
  for (int attempt = 0; attempt < 20; ++attempt) {
    Program chat(chat_command(server.url("wss"),
                              {"--ca", authority_.path(), "--temperature", "1", "--thinking", "off",
                               "--max-tokens", "16000", "Write once upon a time"}));
    const bool answers = chat.wait_for_output(" ");
    if (answers) chat.signal(SIGINT);
    result = chat.finish();
    ASSERT_EQ(result.status, 0) << result.err;
    if (result.err.find("[cancelled; ") != std::string::npos) return;
  }
  FAIL() << "no answer was cancelled: " << result.err;
}

TEST_F(ChatTls, ACertificateThatIsNotTrustedIsRefused) {
  const Server server(folder_, settings("server", "IP:127.0.0.1"));
  const std::string url = server.url("wss");
  const test::Authority other(folder_.path(), "other");
  EXPECT_THAT(refusal(url, {"--ca", other.path()}),
              HasSubstr("the server's certificate is not trusted: unable to get local issuer"));
  EXPECT_THAT(refusal(url), HasSubstr("--ca FILE names who else may have signed it"));
  EXPECT_THAT(refusal(url, {"--ca", folder_.path() + "/none"}), HasSubstr("/none: No such file"));
  EXPECT_THAT(refusal(url, {"--ca", folder_.write("empty", "")}), HasSubstr("no PEM certificate"));
  EXPECT_THAT(refusal(server.url("ws")), HasSubstr("if it speaks TLS, it wants wss://"));
}

// The subject is no name any more, whatever it says.
TEST_F(ChatTls, ACertificateForAnotherNameIsRefused) {
  const Server server(folder_, settings("localhost", "IP:127.0.0.1,DNS:cedar.example"));
  const std::vector<std::string> trust = {"--ca", authority_.path()};
  EXPECT_THAT(refusal(server.url("wss", "localhost"), trust),
              HasSubstr("the server's certificate is not for localhost"));
  const Server by_name(folder_, settings("127.0.0.1", "DNS:localhost"));
  EXPECT_THAT(refusal(by_name.url("wss"), trust),
              HasSubstr("the server's certificate is not for 127.0.0.1"));
}

TEST_F(ChatTls, AServerWithoutTlsIsNamed) {
  const Server server(folder_, "");
  EXPECT_THAT(refusal(server.url("wss"), {"--ca", authority_.path()}),
              HasSubstr("does not speak TLS"));
  const auto misused = chat(server.url("ws"), {"--ca", authority_.path(), "Hi"});
  EXPECT_EQ(misused.status, 2);
  EXPECT_THAT(misused.err, HasSubstr("--ca: is for wss:// only"));
}

class ChatKeys : public testing::Test {
 protected:
  void SetUp() override { unsetenv(kVariable); }
  void TearDown() override { unsetenv(kVariable); }
  std::string settings() const {
    return "[[keys]]\nname = \"one\"\nfile = \"" + folder_.write("one", kKey) +
           "\"\n[[keys]]\nname = \"two\"\nfile = \"" + folder_.write("two", kLimitedKey) +
           "\"\nrequests_per_minute = 1\n";
  }

  test::TempDirectory folder_;
};

TEST_F(ChatKeys, ComeFromAFileOrTheEnvironment) {
  const Server server(folder_, settings());
  const std::string url = server.url("ws");
  const std::vector<std::string> question = {"--max-tokens", "2", "Hello"};
  EXPECT_THAT(refusal(url), HasSubstr("the server asks for an API key: give --api-key-file or set "
                                      "CEDAR_API_KEY (401)"));
  setenv(kVariable, "wrong-key-0123456789", 1);
  EXPECT_THAT(refusal(url), HasSubstr("the server does not know the API key (401): "));
  const std::string file = folder_.write("key", std::string(kKey) + "\r\na comment\n");
  const auto by_file = chat(url, {"--api-key-file", file, "--max-tokens", "2", "Hello"});
  EXPECT_EQ(by_file.status, 0) << by_file.err;
  setenv(kVariable, kKey, 1);
  EXPECT_EQ(chat(url, question).status, 0);
}

TEST_F(ChatKeys, LimitsAreExplained) {
  const Server server(folder_, settings());
  setenv(kVariable, kLimitedKey, 1);
  const auto result = test::run_program(
      chat_command(server.url("ws"),
                   {"--max-tokens", "2", "--file", folder_.write("text", "document")}),
      "one\ntwo\n");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("at most 1 requests a minute with this API key"));
  EXPECT_THAT(result.err, testing::ContainsRegex("try again in [0-9]+ s"));
}

TEST_F(ChatKeys, WhatIsNoKeyIsNotSentAndNotShown) {
  const std::string nobody = "ws://127.0.0.1:1";
  for (const char* bad : {"", "\n", "secret word", "secret\x01", "secret\xC3\xA9"}) {
    const std::string file = folder_.write("key", bad);
    const auto result = chat(nobody, {"--api-key-file", file, "Hi"});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr("--api-key-file: " + file + " must hold an API key"));
    EXPECT_THAT(result.err, Not(HasSubstr("secret")));
  }
  setenv(kVariable, "secret word", 1);
  EXPECT_THAT(chat(nobody, {"Hi"}).err, HasSubstr("CEDAR_API_KEY must hold an API key"));
  EXPECT_THAT(chat(nobody, {"--api-key-file", folder_.path() + "/none", "Hi"}).err,
              HasSubstr("/none: No such file"));
}

}  // namespace
}  // namespace cedar
