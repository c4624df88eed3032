#include <cstdio>
#include <numeric>

#include "bench/serve/url_run.h"
#include "bench/support/report.h"

namespace cedar::bench {
namespace {

using Json = nlohmann::ordered_json;

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Json times(const std::vector<double>& seconds) {
  return {{"mean", 1e3 * mean(seconds)},
          {"p50", 1e3 * percentile(seconds, 0.5)},
          {"p90", 1e3 * percentile(seconds, 0.9)},
          {"p99", 1e3 * percentile(seconds, 0.99)},
          {"max", 1e3 * percentile(seconds, 1)}};
}

void print_times(const char* what, const std::vector<double>& seconds) {
  std::printf("%-34s %9.2f %9.2f %9.2f %9.2f\n", what, 1e3 * mean(seconds),
              1e3 * percentile(seconds, 0.5), 1e3 * percentile(seconds, 0.9),
              1e3 * percentile(seconds, 0.99));
}

double per_second(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

}  // namespace

Json to_json(const UrlOptions& options, const UrlResult& r) {
  return {
      {"requests", options.requests},
      {"request_rate", options.request_rate},
      {"concurrency", options.concurrency},
      {"prompt_tokens_wanted", options.prompt_tokens},
      {"answer_tokens_wanted", options.answer_tokens},
      {"completed", r.completed},
      {"failed", r.failed},
      {"problems", r.problems},
      {"seconds", r.seconds},
      {"prompt_tokens", r.prompt_tokens},
      {"answer_tokens", r.answer_tokens},
      {"requests_per_s", per_second(r.completed, r.seconds)},
      {"prompt_tokens_per_s", per_second(r.prompt_tokens, r.seconds)},
      {"answer_tokens_per_s", per_second(r.answer_tokens, r.seconds)},
      {"ttft_ms", times(r.first_token)},
      {"tpot_ms", times(r.per_token)},
      {"itl_ms", times(r.inter_token)},
      {"e2el_ms", times(r.whole)},
  };
}

void print(const UrlResult& r) {
  std::printf("%-34s %9lld\n", "requests answered", static_cast<long long>(r.completed));
  std::printf("%-34s %9lld\n", "requests failed", static_cast<long long>(r.failed));
  std::printf("%-34s %9.2f\n", "duration, s", r.seconds);
  std::printf("%-34s %9lld\n", "prompt tokens", static_cast<long long>(r.prompt_tokens));
  std::printf("%-34s %9lld\n", "answer tokens", static_cast<long long>(r.answer_tokens));
  std::printf("%-34s %9.2f\n", "requests/s", per_second(r.completed, r.seconds));
  std::printf("%-34s %9.1f\n", "prompt tokens/s", per_second(r.prompt_tokens, r.seconds));
  std::printf("%-34s %9.1f\n", "answer tokens/s", per_second(r.answer_tokens, r.seconds));
  std::printf("\n%-34s %9s %9s %9s %9s\n", "ms", "mean", "p50", "p90", "p99");
  print_times("time to first token (TTFT)", r.first_token);
  print_times("time per further token (TPOT)", r.per_token);
  print_times("between two texts (ITL)", r.inter_token);
  print_times("whole answer (E2EL)", r.whole);
  for (const std::string& problem : r.problems) std::printf("! %s\n", problem.c_str());
}

}  // namespace cedar::bench
