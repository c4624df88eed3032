#include "monitoring/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/text_file.h"
#include "monitoring/describe_metrics.h"
#include "monitoring/metric_aliases.h"
#include "monitoring/metric_table.h"

namespace cedar::monitoring {
namespace {

using testing::HasSubstr;
using testing::Not;

/// The series of a text: name with labels to value.
std::map<std::string, double> series_of(const std::string& text) {
  std::map<std::string, double> series;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    series[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return series;
}

TEST(Metrics, WhatIsCountedAppearsInTheText) {
  Metrics metrics;
  metrics.count_http(Route::chat, 200);
  metrics.count_http(Route::chat, 200);
  metrics.count_http(Route::unknown, 404);
  metrics.add(MetricId::responses, Outcome::completed);
  metrics.add(MetricId::prompt_tokens, 100);
  metrics.observe(MetricId::time_to_first_token, 0.02);
  metrics.observe(MetricId::phase_seconds, Phase::prefill, 3);
  metrics.set(MetricId::decoder_sequences, 3);
  metrics.add(MetricId::connections);
  metrics.add(MetricId::connections);
  metrics.add(MetricId::connections, -1);
  metrics.add(MetricId::pulls, Errc::checksum_mismatch);
  auto series = series_of(metrics.scrape());
  EXPECT_EQ(series[R"(cedar_gateway_http_requests_total{code="200",route="chat"})"], 2);
  EXPECT_EQ(series[R"(cedar_gateway_http_requests_total{code="404",route="unknown"})"], 1);
  EXPECT_EQ(series[R"(cedar_gateway_responses_total{outcome="completed"})"], 1);
  EXPECT_EQ(series["cedar_gateway_prompt_tokens_total"], 100);
  EXPECT_EQ(series["cedar_gateway_time_to_first_token_seconds_count"], 1);
  EXPECT_EQ(series[R"(cedar_actors_phase_seconds_sum{phase="prefill"})"], 3);
  EXPECT_EQ(series["cedar_decoder_sequences"], 3);
  EXPECT_EQ(series["cedar_gateway_connections"], 1);
  EXPECT_EQ(series[R"(cedar_transport_pulls_total{status="checksum_mismatch"})"], 1);
}

TEST(Metrics, CountersThatAreKeptElsewhereFollowAndNeverGoBack) {
  Metrics metrics;
  double rows = 40;
  const auto handle = metrics.collect(
      [&](Metrics& to) { to.raise(MetricId::engram_rows, EngramFound::cache, rows); });
  const std::string name = R"(cedar_engram_rows_total{found="cache"})";
  EXPECT_EQ(series_of(metrics.scrape())[name], 40);
  rows = 10;
  EXPECT_EQ(series_of(metrics.scrape())[name], 40);
  rows = 50;
  EXPECT_EQ(series_of(metrics.scrape())[name], 50);
}

TEST(Metrics, ACollectorIsNotAskedAnyMoreWhenItsHandleIsGone) {
  Metrics metrics;
  int asked = 0;
  auto handle = metrics.collect([&](Metrics&) { ++asked; });
  metrics.scrape();
  handle.reset();
  metrics.scrape();
  EXPECT_EQ(asked, 1);
}

TEST(Metrics, EveryRowOfTheTableIsExposedOnce) {
  Metrics metrics;
  metrics.count_http(Route::chat, 200);
  const std::string text = metrics.scrape();
  std::set<std::string_view> names;
  for (const MetricRow& row : metric_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_THAT(text, HasSubstr("# TYPE " + std::string(row.name) + ' ' +
                                std::string(to_string(row.type)) + '\n'));
    EXPECT_EQ(row.type == MetricType::histogram, row.buckets != Buckets::none) << row.name;
  }
}

TEST(Metrics, AProcessExportsTheFamiliesOfItsRolesOnly) {
  Metrics encoder({{Role::process, Role::encoder}, false, ""});
  encoder.add(MetricId::decoder_tokens, 5);
  encoder.observe(MetricId::decoder_step_seconds, 5);
  encoder.count_http(Route::chat, 200);
  const std::string text = encoder.scrape();
  EXPECT_THAT(text, HasSubstr("cedar_encoder_rows_total"));
  EXPECT_THAT(text, HasSubstr("cedar_ready"));
  EXPECT_THAT(text, Not(HasSubstr("cedar_decoder_")));
  EXPECT_THAT(text, Not(HasSubstr("cedar_gateway_")));
  EXPECT_EQ(no_metrics()->scrape(), "");
}

TEST(Metrics, TheProcessIsMeasured) {
  Metrics metrics;
  auto series = series_of(metrics.scrape());
  EXPECT_GT(series["process_resident_memory_bytes"], 1e6);
  EXPECT_GT(series["process_virtual_memory_bytes"], series["process_resident_memory_bytes"]);
  EXPECT_GE(series["process_open_fds"], 3);
  EXPECT_GE(series["process_max_fds"], series["process_open_fds"]);
  EXPECT_NEAR(series["process_start_time_seconds"], static_cast<double>(time(nullptr)), 600);
  EXPECT_GT(series["process_cpu_seconds_total"], 0);
  EXPECT_LT(series["process_cpu_seconds_total"], 600);
}

// Field report B62.
TEST(Metrics, WhateverStatusIsCountedTheSeriesAreBounded) {
  Metrics metrics;
  for (int status = 0; status < 10000; ++status) metrics.count_http(Route::unknown, status);
  size_t series = 0;
  for (const auto& [name, value] : series_of(metrics.scrape())) {
    series += name.rfind("cedar_gateway_http_requests_total", 0) == 0 ? 1 : 0;
  }
  EXPECT_EQ(series, kCodeNames.size());
}

/// Field report B65: what the text of one moment says fits together, and nothing goes back from one to the next.
void expect_consistent(const std::string& text, std::map<std::string, double>& before) {
  const auto now = series_of(text);
  double last_bucket = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t brace = line.find("seconds_bucket{");
    if (brace == std::string::npos) continue;
    const double value = std::stod(line.substr(line.rfind(' ') + 1));
    if (line.find("le=\"0.001\"") != std::string::npos) last_bucket = 0;
    ASSERT_GE(value, last_bucket) << line;
    last_bucket = value;
  }
  const double count = now.at("cedar_gateway_inter_token_seconds_count");
  ASSERT_EQ(count, now.at("cedar_gateway_inter_token_seconds_bucket{le=\"+Inf\"}"));
  // Every observation of this test is half a second.
  ASSERT_NEAR(now.at("cedar_gateway_inter_token_seconds_sum"), count / 2, 1e-6 * count);
  for (const auto& [name, value] : before) {
    if (name.find("inter_token") != std::string::npos || name.find("_total") != std::string::npos) {
      ASSERT_GE(now.at(name), value) << name;
    }
  }
  before = now;
}

TEST(Metrics, HistogramsAndCountersAreConsistentWhileManyCountAndScrape) {
  Metrics metrics({{Role::gateway}, false, ""});
  std::atomic<bool> ended{false};
  std::vector<std::thread> counters;
  for (int i = 0; i < 2; ++i) {
    counters.emplace_back([&] {
      while (!ended) {
        metrics.observe(MetricId::inter_token, 0.5);
        metrics.add(MetricId::completion_tokens);
        metrics.count_http(Route::chat, 200);
      }
    });
  }
  std::vector<std::thread> scrapers;
  for (int i = 0; i < 2; ++i) {
    scrapers.emplace_back([&] {
      std::map<std::string, double> before;
      for (int n = 0; n < 100; ++n) expect_consistent(metrics.scrape(), before);
    });
  }
  for (std::thread& scraper : scrapers) scraper.join();
  ended = true;
  for (std::thread& counter : counters) counter.join();
}

TEST(Metrics, TheNamesOfVllmAreThereWhenAskedFor) {
  EXPECT_THAT(Metrics().scrape(), Not(HasSubstr("vllm:")));
  Metrics metrics({RoleSet::all(), true, "demo \"x\""});
  metrics.set(MetricId::running_requests, 2);
  metrics.set(MetricId::cluster_decoder_used, 0.25);
  metrics.add(MetricId::cached_prompt_tokens, Tier::memory, 30);
  metrics.add(MetricId::cached_prompt_tokens, Tier::disk, 12);
  metrics.add(MetricId::responses, Outcome::incomplete, 3);
  metrics.observe(MetricId::phase_seconds, Phase::queue, 2);
  metrics.observe(MetricId::phase_seconds, Phase::decode, 7);
  metrics.observe(MetricId::time_to_first_token, 0.3);
  const std::string text = metrics.scrape();
  auto series = series_of(text);
  const std::string labels = R"(engine="0",model_name="demo \"x\"")";
  EXPECT_EQ(series["vllm:num_requests_running{" + labels + "}"], 2);
  EXPECT_EQ(series["vllm:kv_cache_usage_perc{" + labels + "}"], 0.25);
  EXPECT_EQ(series["vllm:gpu_cache_usage_perc{" + labels + "}"], 0.25);
  EXPECT_EQ(series["vllm:prefix_cache_hits_total{" + labels + "}"], 42);
  EXPECT_EQ(series["vllm:request_success_total{" + labels + R"(,finished_reason="length"})"], 3);
  EXPECT_EQ(series["vllm:request_queue_time_seconds_sum{" + labels + "}"], 2);
  EXPECT_EQ(series["vllm:request_decode_time_seconds_sum{" + labels + "}"], 7);
  EXPECT_EQ(series["vllm:time_to_first_token_seconds_bucket{" + labels + R"(,le="0.5"})"], 1);
  EXPECT_THAT(text, HasSubstr("# TYPE vllm:time_to_first_token_seconds histogram"));
}

TEST(Metrics, ErrorCodesHaveTheirNames) {
  for (size_t code = 0; code < kErrcNames.size(); ++code) {
    EXPECT_EQ(kErrcNames[code], to_string(static_cast<Errc>(code)));
  }
}

TEST(Metrics, TheCommittedDescriptionIsTheCurrentOne) {
  const auto committed = read_text_file(std::string(CEDAR_SOURCE_DIR) + "/docs/metrics.md");
  ASSERT_TRUE(committed) << committed.error().message();
  EXPECT_EQ(*committed, describe_metrics())
      << "write it again: build/bin/cedar config metrics > docs/metrics.md";
}

}  // namespace
}  // namespace cedar::monitoring
