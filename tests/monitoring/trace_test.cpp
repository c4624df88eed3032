#include "monitoring/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>
#include <thread>

#include "tests/support/temp_directory.h"

namespace cedar::monitoring {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

class TraceTest : public testing::Test {
 protected:
  test::TempDirectory folder_;
  Trace::Options options_{folder_.path() + "/trace.json", "cedar \"node\"", 7};

  std::shared_ptr<Trace> open() {
    auto trace = Trace::open(options_);
    EXPECT_TRUE(trace.has_value()) << trace.error().message();
    return std::move(*trace);
  }
  std::string text() const {
    std::ifstream file(options_.path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  /// The events, without those that name rows.
  std::vector<json> events() const {
    std::vector<json> events;
    for (const json& event : json::parse(text())) {
      if (event["ph"] != "M") events.push_back(event);
    }
    return events;
  }
};

TEST_F(TraceTest, HoldsWorkAndSpansOnOneAxis) {
  const auto before = std::chrono::duration_cast<std::chrono::microseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  const auto begin = Trace::Clock::now();
  const auto trace = open();
  trace->work(Track::encoder, "chunk", begin, begin + milliseconds(5), {{"rows", 512}});
  trace->span("pull", "blocks", 0xabc, begin + milliseconds(1), begin + milliseconds(3),
              {{"bytes", 890}, {"ok", 1}});
  trace->finish();
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["ph"], "X");
  EXPECT_EQ(all[0]["name"], "chunk");
  EXPECT_EQ(all[0]["pid"], 7);
  EXPECT_EQ(all[0]["dur"], 5000);
  EXPECT_EQ(all[0]["args"], json({{"rows", 512}}));
  EXPECT_NEAR(all[0]["ts"].get<double>(), static_cast<double>(before), 1e6);
  EXPECT_EQ(all[1]["ph"], "b");
  EXPECT_EQ(all[1]["id"], "0xabc");
  EXPECT_EQ(all[1]["cat"], "pull");
  EXPECT_EQ(all[1]["args"], json({{"bytes", 890}, {"ok", 1}}));
  EXPECT_EQ(all[2]["ph"], "e");
  EXPECT_EQ(all[2]["ts"].get<int64_t>() - all[1]["ts"].get<int64_t>(), 2000);
  EXPECT_EQ(all[1]["ts"].get<int64_t>() - all[0]["ts"].get<int64_t>(), 1000);
  EXPECT_EQ(json::parse(text())[0]["args"]["name"], "cedar \"node\"");
}

TEST_F(TraceTest, ManyThreadsWriteWholeEvents) {
  const auto trace = open();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 500; ++n) {
        trace->work(Track::decoder, "step", Trace::Clock::now(), Trace::Clock::now());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  trace->finish();
  EXPECT_EQ(events().size(), 2000u);
  EXPECT_EQ(trace->dropped(), 0);
}

TEST_F(TraceTest, AFullFileTakesNoMoreAndStaysReadable) {
  options_.max_bytes = 4096;
  const auto trace = open();
  for (int n = 0; n < 200; ++n) {
    trace->work(Track::decoder, "step", Trace::Clock::now(), Trace::Clock::now());
  }
  trace->finish();
  EXPECT_GT(trace->dropped(), 0);
  EXPECT_EQ(static_cast<int64_t>(events().size()) + trace->dropped(), 200);
  EXPECT_LE(text().size(), 4200u);
}

TEST_F(TraceTest, AFullQueueDropsAndCounts) {
  options_.max_queued = 10;
  const auto trace = open();
  int64_t most = 0;
  for (int n = 0; n < 100000; ++n) {
    trace->work(Track::decoder, "step", Trace::Clock::now(), Trace::Clock::now());
    most = n + 1;
  }
  trace->finish();
  trace->work(Track::decoder, "late", Trace::Clock::now(), Trace::Clock::now());
  EXPECT_EQ(static_cast<int64_t>(events().size()) + trace->dropped(), most + 1);
  EXPECT_GT(trace->dropped(), 0);
}

TEST_F(TraceTest, AFileThatCannotBeWrittenIsNamed) {
  options_.path = folder_.path() + "/no/such/folder/trace.json";
  const auto trace = Trace::open(options_);
  ASSERT_FALSE(trace.has_value());
  EXPECT_EQ(trace.error().code, Errc::io_error);
  EXPECT_THAT(trace.error().message(), testing::HasSubstr("no/such/folder/trace.json"));
}

}  // namespace
}  // namespace cedar::monitoring
