#include "monitoring/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "monitoring/metric_table.h"

namespace cedar::monitoring {
namespace {

using testing::HasSubstr;

TEST(Metrics, CountersAppearInTheText) {
  Metrics metrics;
  metrics.count_http(Route::chat, 200);
  metrics.count_http(Route::chat, 200);
  metrics.count_http(Route::unknown, 404);
  metrics.count_response(Outcome::completed, 100, 7);
  metrics.observe_first_token(0.02);
  PipelineGauges gauges;
  gauges.decoder_sequences = 3;
  gauges.engram_rows = {40, 30, 2, 1};
  gauges.ready = true;
  const std::string text = metrics.scrape(gauges);
  EXPECT_THAT(text, HasSubstr(R"(cedar_gateway_http_requests_total{code="200",route="chat"} 2)"));
  EXPECT_THAT(text,
              HasSubstr(R"(cedar_gateway_http_requests_total{code="404",route="unknown"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(cedar_gateway_responses_total{outcome="completed"} 1)"));
  EXPECT_THAT(text, HasSubstr("cedar_gateway_prompt_tokens_total 100"));
  EXPECT_THAT(text, HasSubstr("cedar_gateway_completion_tokens_total 7"));
  EXPECT_THAT(text, HasSubstr("cedar_gateway_time_to_first_token_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("cedar_decoder_sequences 3"));
  EXPECT_THAT(text, HasSubstr("cedar_ready 1"));
  EXPECT_THAT(text, HasSubstr(R"(cedar_engram_rows_total{found="cache"} 40)"));
  EXPECT_THAT(text, HasSubstr(R"(cedar_engram_rows_total{found="late"} 2)"));
  // Counters that are kept elsewhere follow, and never go back.
  gauges.engram_rows = {50, 10, 2, 1};
  const std::string later = metrics.scrape(gauges);
  EXPECT_THAT(later, HasSubstr(R"(cedar_engram_rows_total{found="cache"} 50)"));
  EXPECT_THAT(later, HasSubstr(R"(cedar_engram_rows_total{found="ahead"} 30)"));
}

TEST(Metrics, EveryRowOfTheTableIsExposedOnce) {
  Metrics metrics;
  metrics.count_http(Route::chat, 200);
  const std::string text = metrics.scrape({});
  std::set<std::string_view> names;
  for (const MetricRow& row : metric_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_THAT(text, HasSubstr("# TYPE " + std::string(row.name) + ' '));
  }
}

}  // namespace
}  // namespace cedar::monitoring
