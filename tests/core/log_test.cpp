#include "core/log.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace cedar::log {
namespace {

class Log : public testing::Test {
 protected:
  void SetUp() override { testing::internal::CaptureStderr(); }
  void TearDown() override {
    if (!taken_) testing::internal::GetCapturedStderr();
    set_level(Level::info);
  }
  std::string taken() {
    taken_ = true;
    return testing::internal::GetCapturedStderr();
  }

 private:
  bool taken_ = false;
};

/// The line without its time stamp.
std::string body(const std::string& line) {
  const size_t blank = line.find(' ');
  return blank == std::string::npos ? line : line.substr(blank + 1);
}

TEST_F(Log, OneEventIsOneLineWithAUtcStamp) {
  warn("transfer", "peer lost", {{"request", 17}, {"peer", "node-2"}});
  const std::string text = taken();
  EXPECT_TRUE(
      std::regex_match(text, std::regex("\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}\\.\\d{3}Z "
                                        "warn \\[transfer\\] peer lost request=17 peer=node-2\n")))
      << text;
}

TEST_F(Log, FieldsOfEveryType) {
  info("t", "x",
       {{"b", true},
        {"n", false},
        {"i", -3},
        {"l", int64_t{-9'000'000'000}},
        {"u", UINT64_MAX},
        {"d", 0.25},
        {"s", std::string("plain")},
        {"v", std::string_view("view")}});
  EXPECT_EQ(body(taken()),
            "info [t] x b=true n=false i=-3 l=-9000000000 u=18446744073709551615 d=0.25 s=plain "
            "v=view\n");
}

TEST_F(Log, ValuesThatWouldBreakTheLineAreQuoted) {
  info("t", "x",
       {{"empty", ""},
        {"blank", "a b"},
        {"quote", "say \"hi\""},
        {"equals", "k=v"},
        {"lines", "one\ntwo"},
        {"slash", "c:\\dir"}});
  EXPECT_EQ(body(taken()),
            "info [t] x empty=\"\" blank=\"a b\" quote=\"say \\\"hi\\\"\" equals=\"k=v\" "
            "lines=\"one\\ntwo\" slash=\"c:\\\\dir\"\n");
}

TEST_F(Log, AClientsTextCannotForgeALineOrAnEscape) {
  // A carriage return or a terminal escape in, say, a model name would rewrite what an operator sees.
  info("t", "x", {{"cr", "a\rb"}, {"esc", "a\x1b[2Jb"}, {"nul", std::string("a\0b", 3)}});
  const std::string text = taken();
  EXPECT_EQ(body(text), "info [t] x cr=\"a\\x0db\" esc=\"a\\x1b[2Jb\" nul=\"a\\x00b\"\n");
}

TEST_F(Log, LevelsBelowTheThresholdAreDropped) {
  set_level(Level::warn);
  debug("t", "no");
  info("t", "no");
  warn("t", "yes");
  error("t", "yes");
  const std::string text = taken();
  EXPECT_EQ(text.find("no\n"), std::string::npos) << text;
  EXPECT_NE(text.find("warn [t] yes\n"), std::string::npos) << text;
  EXPECT_NE(text.find("error [t] yes\n"), std::string::npos) << text;
}

TEST_F(Log, OffSilencesEverything) {
  set_level(Level::off);
  error("t", "no");
  write(Level::off, "t", "no");
  EXPECT_EQ(taken(), "");
}

TEST_F(Log, LinesOfThreadsDoNotMix) {
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < kLines; ++i) info("thread", "line", {{"t", t}, {"i", i}, {"end", "."}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::istringstream lines(taken());
  const std::regex shape(".*Z info \\[thread\\] line t=\\d i=\\d+ end=\\.");
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_TRUE(std::regex_match(line, shape)) << line;
  }
  EXPECT_EQ(count, kThreads * kLines);
}

}  // namespace
}  // namespace cedar::log
