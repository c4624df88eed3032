#include "monitoring/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <utility>

#include "monitoring/metric_table.h"

namespace cedar::monitoring {
namespace {

constexpr std::array<const char*, 9> kRoutes = {
    "chat", "completions", "stream", "models", "tokens", "probes", "metrics", "page", "unknown"};
constexpr std::array<const char*, 4> kEngramFound = {"cache", "ahead", "late", "missed"};
constexpr std::array<const char*, 4> kOutcomes = {"completed", "incomplete", "cancelled", "failed"};

prometheus::Histogram::BucketBoundaries latency_buckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
}

class Builder {
 private:
  template <class Family>
  auto& configure(Family family, MetricId id) {
    const MetricRow& row = metric_row(id);
    return family.Name(std::string(row.name)).Help(std::string(row.help)).Register(registry_);
  }

 public:
  explicit Builder(prometheus::Registry& registry) : registry_(registry) {}

  prometheus::Family<prometheus::Counter>& counters(MetricId id) {
    return configure(prometheus::BuildCounter(), id);
  }
  prometheus::Counter& counter(MetricId id) { return counters(id).Add({}); }
  prometheus::Gauge& gauge(MetricId id) { return configure(prometheus::BuildGauge(), id).Add({}); }
  prometheus::Histogram& histogram(MetricId id) {
    return configure(prometheus::BuildHistogram(), id).Add({}, latency_buckets());
  }

 private:
  prometheus::Registry& registry_;
};

double as_double(int64_t value) { return static_cast<double>(value); }

/// A counter that is kept elsewhere; never backwards.
void raise_to(prometheus::Counter& counter, int64_t value) {
  counter.Increment(std::max(0.0, as_double(value) - counter.Value()));
}

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  Builder build{registry};
  prometheus::Family<prometheus::Counter>& http = build.counters(MetricId::http_requests);
  std::array<prometheus::Counter*, 4> outcomes{};
  prometheus::Counter& prompt_tokens = build.counter(MetricId::prompt_tokens);
  prometheus::Counter& completion_tokens = build.counter(MetricId::completion_tokens);
  prometheus::Histogram& first_token = build.histogram(MetricId::time_to_first_token);
  prometheus::Histogram& inter_token = build.histogram(MetricId::inter_token);
  prometheus::Gauge& connections = build.gauge(MetricId::connections);
  prometheus::Counter& slow_readers = build.counter(MetricId::slow_readers);
  prometheus::Gauge& queued = build.gauge(MetricId::queued_requests);
  prometheus::Gauge& running = build.gauge(MetricId::running_requests);
  prometheus::Gauge& actors = build.gauge(MetricId::live_actors);
  prometheus::Gauge& encoder_requests = build.gauge(MetricId::encoder_requests);
  prometheus::Gauge& encoder_tokens = build.gauge(MetricId::encoder_queued_tokens);
  prometheus::Gauge& encoder_blocks = build.gauge(MetricId::encoder_free_blocks);
  prometheus::Gauge& decoder_sequences = build.gauge(MetricId::decoder_sequences);
  prometheus::Gauge& decoder_free = build.gauge(MetricId::decoder_free_blocks);
  prometheus::Gauge& decoder_total = build.gauge(MetricId::decoder_total_blocks);
  std::array<prometheus::Counter*, 4> engram_rows{};
  prometheus::Counter& engram_failed = build.counter(MetricId::engram_failed_fetches);
  prometheus::Gauge& ready = build.gauge(MetricId::ready);

  Impl() {
    auto& family = build.counters(MetricId::responses);
    for (size_t i = 0; i < kOutcomes.size(); ++i) {
      outcomes[i] = &family.Add({{"outcome", kOutcomes[i]}});
    }
    auto& rows = build.counters(MetricId::engram_rows);
    for (size_t i = 0; i < kEngramFound.size(); ++i) {
      engram_rows[i] = &rows.Add({{"found", kEngramFound[i]}});
    }
  }
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

void Metrics::count_http(Route route, int status) {
  impl_->http
      .Add({{"route", kRoutes[static_cast<size_t>(route)]}, {"code", std::to_string(status)}})
      .Increment();
}

void Metrics::count_response(Outcome outcome, int64_t prompt_tokens, int64_t completion_tokens) {
  impl_->outcomes[static_cast<size_t>(outcome)]->Increment();
  impl_->prompt_tokens.Increment(as_double(prompt_tokens));
  impl_->completion_tokens.Increment(as_double(completion_tokens));
}

void Metrics::observe_first_token(double seconds) { impl_->first_token.Observe(seconds); }
void Metrics::observe_inter_token(double seconds) { impl_->inter_token.Observe(seconds); }
void Metrics::connection_opened() { impl_->connections.Increment(); }
void Metrics::connection_closed() { impl_->connections.Decrement(); }
void Metrics::count_slow_reader() { impl_->slow_readers.Increment(); }

std::string Metrics::scrape(const PipelineGauges& gauges) {
  impl_->queued.Set(as_double(gauges.queued_requests));
  impl_->running.Set(as_double(gauges.running_requests));
  impl_->actors.Set(as_double(gauges.live_actors));
  impl_->encoder_requests.Set(as_double(gauges.encoder_requests));
  impl_->encoder_tokens.Set(as_double(gauges.encoder_queued_tokens));
  impl_->encoder_blocks.Set(as_double(gauges.encoder_free_blocks));
  impl_->decoder_sequences.Set(as_double(gauges.decoder_sequences));
  impl_->decoder_free.Set(as_double(gauges.decoder_free_blocks));
  impl_->decoder_total.Set(as_double(gauges.decoder_total_blocks));
  for (size_t i = 0; i < kEngramFound.size(); ++i) {
    raise_to(*impl_->engram_rows[i], gauges.engram_rows[i]);
  }
  raise_to(impl_->engram_failed, gauges.engram_failed_fetches);
  impl_->ready.Set(gauges.ready ? 1 : 0);
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace cedar::monitoring
