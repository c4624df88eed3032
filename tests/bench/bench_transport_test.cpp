// The program around the measurements: two processes, the report's form, wrong options.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "tests/support/temp_directory.h"

namespace cedar {
namespace {

int run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "transport");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return apps::run_bench_transport(static_cast<int>(argv.size()), argv.data());
}

// One test: what forks must come before what starts threads.
TEST(BenchTransport, ReportsEveryLinkAndSize) {
  EXPECT_EQ(run({"--links", "pigeon"}), 2);
  EXPECT_EQ(run({"--sizes", "0"}), 2);
  const test::TempDirectory directory;
  const std::string path = directory.file("result.json");
  ASSERT_EQ(run({"--sizes", "4096,1048576", "--repeats", "1", "--machine", "test", "--json", path}),
            0);
  std::ifstream file(path);
  const auto report = nlohmann::json::parse(file);
  EXPECT_EQ(report["benchmark"], "transport");
  ASSERT_EQ(report["pulls"].size(), 4u);
  for (const auto& pull : report["pulls"]) {
    EXPECT_GT(pull["bytes_per_s"].get<double>(), 0);
    EXPECT_GT(pull["latency_best_s"].get<double>(), 0);
  }
  ASSERT_EQ(report["handoffs"].size(), 2u);
  for (const auto& handoff : report["handoffs"]) {
    // 781 blocks of 128 x 890 bytes and the fixed state.
    EXPECT_EQ(handoff["bytes"].get<uint64_t>(), 781u * 113'920u + 6'608'908u);
    EXPECT_FALSE(handoff["lanes"].get<std::string>().empty());
  }
}

}  // namespace
}  // namespace cedar
