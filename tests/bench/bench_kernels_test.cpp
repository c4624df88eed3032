// The program around the measurements: options, the report's form, and that a wrong kernel would not be timed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "bench/kernels/cases.h"
#include "core/arena.h"
#include "core/thread_pool.h"

namespace cedar {
namespace {

struct Outcome {
  int status;
  std::string out, err;
};

Outcome run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "kernels");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int status = apps::run_bench_kernels(static_cast<int>(argv.size()), argv.data());
  return {status, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

TEST(BenchKernels, RefusesBadOptionsNamingThem) {
  const std::pair<std::vector<std::string>, const char*> bad[] = {
      {{"--threads", "0"}, "--threads must be between 1 and 1024, got '0'"},
      {{"--threads", "2,x"}, "got 'x'"},
      {{"--threads"}, "'--threads' is unknown or lacks its value"},
      {{"--isa", "sse9"}, "--isa must be portable, avx2 or avx512_bf16, got 'sse9'"},
      {{"--min-ms", "-5"}, "--min-ms must be"},
      {{"--clock", "sun"}, "unknown option '--clock sun'"},
      {{"--clock", "processor", "--threads", "2"}, "--clock processor needs --threads 1"},
      {{"--frobnicate", "1"}, "unknown option '--frobnicate 1'"},
      {{"--only", "no such case"}, "--only matches no case"}};
  for (const auto& [arguments, message] : bad) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << message;
    EXPECT_THAT(outcome.err, testing::HasSubstr(message));
  }
}

TEST(BenchKernels, ListNamesEveryCaseOnce) {
  const Outcome outcome = run({"--list"});
  EXPECT_EQ(outcome.status, 0);
  for (const bench::Case& c : bench::all_cases()) {
    const std::string line = c.op + " " + c.shape + "\n";
    const size_t at = outcome.out.find(line);
    ASSERT_NE(at, std::string::npos) << line;
    EXPECT_EQ(outcome.out.find("\n" + line, at + 1), std::string::npos) << line;
  }
}

TEST(BenchKernels, WritesAReport) {
  const std::string path = testing::TempDir() + "bench_kernels_test.json";
  const Outcome outcome = run({"--only", "fp8 [320, 320]", "--threads", "1", "--min-ms", "1",
                               "--isa", "portable", "--json", path});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::ifstream in(path);
  const nlohmann::json report = nlohmann::json::parse(in);
  std::filesystem::remove(path);
  EXPECT_EQ(report.at("isa"), "portable");
  const nlohmann::json& run_of_one = report.at("runs").at(0);
  EXPECT_EQ(run_of_one.at("threads"), 1);
  for (const char* ceiling :
       {"read_bytes_per_s", "copy_bytes_per_s", "bf16_flop_per_s", "f32_flop_per_s"}) {
    EXPECT_GT(run_of_one.at("ceilings").at(ceiling).get<double>(), 1e8) << ceiling;
  }
  ASSERT_EQ(run_of_one.at("results").size(), 2U);
  for (const nlohmann::json& result : run_of_one.at("results")) {
    EXPECT_EQ(result.at("op"), "linear");
    EXPECT_GT(result.at("best_us").get<double>(), 0);
    EXPECT_LE(result.at("best_us").get<double>(), result.at("median_us").get<double>());
    EXPECT_GE(result.at("samples").get<int>(), 5);
  }
}

TEST(BenchKernels, AnUnwritableReportIsAnError) {
  const Outcome outcome = run({"--only", "fp8 [320, 320] rows 1", "--threads", "1", "--min-ms", "1",
                               "--json", "/nonexistent/report.json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, testing::HasSubstr("cannot write /nonexistent/report.json"));
}

TEST(BenchKernels, VerifiesWhatWasComputed) {
  // Before any run the output is zeros: the check has to notice.
  ThreadPool pool(1);
  Arena arena{Device{}};
  kernels::KernelContext ctx;
  ctx.pool = &pool;
  ctx.arena = &arena;
  for (const bench::Case& c : bench::all_cases()) {
    if (c.shape.find("[320, 320] rows 1") == std::string::npos &&
        c.shape.find("[1, 5120], cached") == std::string::npos) {
      continue;
    }
    auto prepared = c.prepare(ctx);
    ASSERT_TRUE(prepared.has_value()) << c.op;
    EXPECT_NE(prepared->verify(), "") << c.op;
    ASSERT_TRUE(prepared->run().has_value()) << c.op;
    EXPECT_EQ(prepared->verify(), "") << c.op;
  }
}

}  // namespace
}  // namespace cedar
