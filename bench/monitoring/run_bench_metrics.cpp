// What counting costs: one count of each kind in a process that exports it and in one that exports nothing, alone and with a
// second thread that counts the same; a request's counts on their way through gateway, session and stages; and a scrape.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"
#include "monitoring/metrics.h"

namespace cedar::bench {
namespace {

using monitoring::MetricId;
using monitoring::Metrics;
using monitoring::Outcome;
using monitoring::Phase;
using monitoring::WorkEnd;
using Clock = std::chrono::steady_clock;
using Work = std::function<void(Metrics&)>;

/// An agent's request: 154 tokens read for one written.
constexpr int kWritten = 100;
constexpr int kChunks = 16;

/// Nanoseconds of one call, the median of several rounds.
double time_of(const Work& work, Metrics& metrics, int calls) {
  std::vector<double> rounds;
  for (int round = 0; round < 9; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) work(metrics);
    rounds.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count() /
                     calls);
  }
  std::nth_element(rounds.begin(), rounds.begin() + 4, rounds.end());
  return rounds[4];
}

double contended(const Work& work, Metrics& metrics, int calls) {
  std::atomic<bool> ended{false};
  std::thread other([&] {
    while (!ended) work(metrics);
  });
  const double time = time_of(work, metrics, calls);
  ended = true;
  other.join();
  return time;
}

/// Everything that is counted for one request: what happens once, per chunk, and per token.
void count_request(Metrics& metrics) {
  metrics.count_http(monitoring::Route::chat, 200);
  for (int phase = 0; phase < 6; ++phase) {
    metrics.observe(MetricId::phase_seconds, static_cast<Phase>(phase), 0.1);
  }
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    metrics.observe(MetricId::encoder_mailbox_seconds, 1e-4);
    metrics.observe(MetricId::encoder_chunk_seconds, 0.2);
    metrics.observe(MetricId::encoder_chunk_rows, 1024);
    metrics.add(MetricId::encoder_rows, 1024);
    metrics.observe(MetricId::transfer_seconds, monitoring::Pulled::blocks, 0.01);
    metrics.add(MetricId::transfer_bytes, monitoring::Pulled::blocks, 1e6);
  }
  for (int token = 0; token < kWritten; ++token) {
    metrics.observe(MetricId::decoder_mailbox_seconds, 1e-4);
    metrics.observe(MetricId::decoder_step_seconds, 0.03);
    metrics.observe(MetricId::decoder_step_rows, 8);
    metrics.add(MetricId::decoder_replayed_rows, 0);
    metrics.add(MetricId::decoder_tokens, 8);
    metrics.observe(MetricId::inter_token, 0.03);
  }
  metrics.add(MetricId::encoder_prompts, WorkEnd::finished);
  metrics.add(MetricId::decoder_sequences_ended, WorkEnd::finished);
  metrics.observe(MetricId::time_to_first_token, 1);
  metrics.observe(MetricId::response_seconds, 4);
  metrics.add(MetricId::responses, Outcome::completed);
  metrics.add(MetricId::prompt_tokens, 15400);
  metrics.add(MetricId::completion_tokens, kWritten);
}

void row(const char* name, const Work& work, int calls) {
  Metrics counts;
  const auto nothing = monitoring::no_metrics();
  const double one = time_of(work, counts, calls);
  const double two = contended(work, counts, calls);
  const double none = time_of(work, *nothing, calls);
  std::printf("%-28s %12.1f %12.1f %12.1f\n", name, one, two, none);
}

void measure_scrape(const char* name, monitoring::RoleSet roles) {
  Metrics metrics({roles, false, ""});
  for (int i = 0; i < 1000; ++i) count_request(metrics);
  const std::string text = metrics.scrape();
  CEDAR_ASSERT(text.find("cedar_") != std::string::npos, "a scrape has families");
  const double time = time_of([](Metrics& m) { m.scrape(); }, metrics, 50);
  std::printf("%-28s %12.0f us %9zu bytes\n", name, time / 1000, text.size());
}

int run() {
  Metrics check;
  count_request(check);
  const std::string text = check.scrape();
  CEDAR_ASSERT(text.find("cedar_gateway_completion_tokens_total 100\n") != std::string::npos, text);
  std::printf("%-28s %12s %12s %12s\n", "ns", "exported", "two threads", "not exported");
  row(
      "add", [](Metrics& m) { m.add(MetricId::completion_tokens); }, 1000000);
  row(
      "observe", [](Metrics& m) { m.observe(MetricId::inter_token, 0.03); }, 1000000);
  row("a request, 100 tokens", count_request, 1000);
  std::printf("\nscrape\n");
  using monitoring::Role;
  measure_scrape("every role", monitoring::RoleSet::all());
  measure_scrape("a gateway", {Role::process, Role::gateway});
  measure_scrape("an encoder", {Role::process, Role::encoder, Role::data_plane});
  return 0;
}

}  // namespace
}  // namespace cedar::bench

int main() { return cedar::bench::run(); }
