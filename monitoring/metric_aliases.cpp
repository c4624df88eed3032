#include "monitoring/metric_aliases.h"

#include <prometheus/metric_family.h>

#include <algorithm>
#include <string>
#include <utility>

namespace cedar::monitoring {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

const MetricFamily* find(const std::vector<MetricFamily>& families, std::string_view name) {
  const auto at = std::find_if(families.begin(), families.end(),
                               [&](const MetricFamily& family) { return family.name == name; });
  return at == families.end() ? nullptr : &*at;
}

bool has_value(const ClientMetric& metric, std::string_view value) {
  return std::any_of(metric.label.begin(), metric.label.end(),
                     [&](const ClientMetric::Label& label) { return label.value == value; });
}

/// The series of the family; with several of them, the sum of their counters.
ClientMetric pick(const MetricFamily& family, std::string_view value) {
  ClientMetric picked;
  bool first = true;
  for (const ClientMetric& metric : family.metric) {
    if (!value.empty() && !has_value(metric, value)) continue;
    if (std::exchange(first, false)) {
      picked = metric;
    } else {
      picked.counter.value += metric.counter.value;
    }
  }
  return picked;
}

}  // namespace

std::span<const MetricAlias> vllm_aliases() {
  using enum MetricId;
  static const std::vector<MetricAlias> aliases = {
      {"vllm:num_requests_running", running_requests, "Requests with a live session"},
      {"vllm:num_requests_waiting", queued_requests, "Requests waiting for room"},
      {"vllm:kv_cache_usage_perc", cluster_decoder_used, "Taken part of the decoders' KV blocks"},
      // Its name in earlier versions of vLLM.
      {"vllm:gpu_cache_usage_perc", cluster_decoder_used, "Taken part of the decoders' KV blocks"},
      {"vllm:prompt_tokens_total", prompt_tokens, "Prompt tokens of ended answers"},
      {"vllm:generation_tokens_total", completion_tokens, "Tokens generated for ended answers"},
      {"vllm:prefix_cache_queries_total", prompt_tokens, "Prompt tokens of ended answers"},
      {"vllm:prefix_cache_hits_total", cached_prompt_tokens,
       "Prompt tokens that came from a cache"},
      {"vllm:request_success_total",
       responses,
       "Generated answers by how they ended",
       "finished_reason",
       {{"completed", "stop"}, {"incomplete", "length"}, {"cancelled", "abort"}}},
      {"vllm:time_to_first_token_seconds", time_to_first_token,
       "From a request's acceptance to its first token"},
      {"vllm:inter_token_latency_seconds", inter_token, "Between two token events of one answer"},
      {"vllm:time_per_output_token_seconds", inter_token, "Between two token events of one answer"},
      {"vllm:e2e_request_latency_seconds", response_seconds,
       "From a request's acceptance to the end of its answer"},
      {"vllm:request_queue_time_seconds",
       phase_seconds,
       "Time that requests waited for room",
       "",
       {{"queue"}}},
      {"vllm:request_prefill_time_seconds",
       phase_seconds,
       "Time of reading prompts",
       "",
       {{"prefill"}}},
      {"vllm:request_decode_time_seconds",
       phase_seconds,
       "Time of writing answers",
       "",
       {{"decode"}}},
  };
  return aliases;
}

void append_aliases(std::span<const MetricAlias> aliases, std::string_view model_name,
                    std::vector<MetricFamily>& families) {
  std::vector<MetricFamily> added;
  for (const MetricAlias& alias : aliases) {
    const MetricFamily* const source = find(families, metric_row(alias.source).name);
    if (source == nullptr) continue;
    MetricFamily family{std::string(alias.name), std::string(alias.help), source->type, {}};
    for (const AliasSeries& series : alias.series) {
      ClientMetric metric = pick(*source, series.value);
      metric.label = {{"engine", "0"}, {"model_name", std::string(model_name)}};
      if (!alias.label.empty()) {
        metric.label.push_back({std::string(alias.label), std::string(series.as)});
      }
      family.metric.push_back(std::move(metric));
    }
    added.push_back(std::move(family));
  }
  std::move(added.begin(), added.end(), std::back_inserter(families));
}

}  // namespace cedar::monitoring
