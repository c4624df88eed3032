#include "monitoring/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <mutex>
#include <utility>
#include <vector>

#include "monitoring/metric_aliases.h"
#include "monitoring/process_usage.h"

namespace cedar::monitoring {
namespace {

/// The labels of series `at` of a row; the last label changes fastest.
prometheus::Labels labels_of(const MetricRow& row, size_t at) {
  prometheus::Labels labels;
  for (auto label = row.labels.rbegin(); label != row.labels.rend(); ++label) {
    if (label->name.empty()) continue;
    labels[std::string(label->name)] = std::string(label->values[at % label->values.size()]);
    at /= label->values.size();
  }
  return labels;
}

/// The series of one row; none when it is not exported.
template <class Metric>
class Series {
 public:
  using Add = std::function<Metric&(const prometheus::Labels&)>;

  void open(const MetricRow& row, Add add) {
    row_ = &row;
    add_ = std::move(add);
    metrics_ = std::vector<std::atomic<Metric*>>(row.series());
    for (size_t at = 0; at < metrics_.size() && !row.sparse; ++at) find(at);
  }
  /// Null: not exported. What lies beyond the table counts as the last one.
  Metric* find(size_t at) {
    if (metrics_.empty()) return nullptr;
    at = std::min(at, metrics_.size() - 1);
    Metric* known = metrics_[at].load(std::memory_order_acquire);
    if (known == nullptr) {
      // A family gives the same object to everybody who asks for the same labels.
      known = &add_(labels_of(*row_, at));
      metrics_[at].store(known, std::memory_order_release);
    }
    return known;
  }

 private:
  const MetricRow* row_ = nullptr;
  Add add_;
  std::vector<std::atomic<Metric*>> metrics_;
};

template <class Metric>
using Table = std::array<Series<Metric>, static_cast<size_t>(MetricId::count)>;

template <class Builder>
auto& family_of(Builder builder, const MetricRow& row, prometheus::Registry& registry) {
  return builder.Name(std::string(row.name)).Help(std::string(row.help)).Register(registry);
}

}  // namespace

struct Metrics::Impl {
  MetricsOptions options;
  prometheus::Registry registry;
  Table<prometheus::Counter> counters;
  Table<prometheus::Gauge> gauges;
  Table<prometheus::Histogram> histograms;
  std::mutex scraping;  // one scrape at a time, because collectors raise what others have counted
  std::list<Collector> collectors;

  void open(const MetricRow& row) {
    const auto at = static_cast<size_t>(row.id);
    switch (row.type) {
      case MetricType::counter:
        counters[at].open(
            row,
            [&family = family_of(prometheus::BuildCounter(), row, registry)](
                const prometheus::Labels& l) -> auto& { return family.Add(l); });
        break;
      case MetricType::gauge:
        gauges[at].open(
            row,
            [&family = family_of(prometheus::BuildGauge(), row, registry)](
                const prometheus::Labels& l) -> auto& { return family.Add(l); });
        break;
      case MetricType::histogram: {
        const auto upper = bounds(row.buckets);
        histograms[at].open(
            row, [&family = family_of(prometheus::BuildHistogram(), row, registry),
                  buckets = prometheus::Histogram::BucketBoundaries(upper.begin(), upper.end())](
                     const prometheus::Labels& l) -> auto& { return family.Add(l, buckets); });
        break;
      }
    }
  }
};

Metrics::Metrics(MetricsOptions options) : impl_(std::make_shared<Impl>()) {
  impl_->options = std::move(options);
  for (const MetricRow& row : metric_table()) {
    if (impl_->options.roles.has(row.role)) impl_->open(row);
  }
  set(MetricId::build_info, 1);
}

Metrics::~Metrics() = default;

void Metrics::add_at(MetricId id, size_t at, double amount) {
  const auto row = static_cast<size_t>(id);
  if (auto* const counter = impl_->counters[row].find(at)) counter->Increment(amount);
  else if (auto* const gauge = impl_->gauges[row].find(at)) gauge->Increment(amount);
}

void Metrics::set_at(MetricId id, size_t at, double value) {
  if (auto* const gauge = impl_->gauges[static_cast<size_t>(id)].find(at)) gauge->Set(value);
}

void Metrics::raise_at(MetricId id, size_t at, double total) {
  if (auto* const counter = impl_->counters[static_cast<size_t>(id)].find(at)) {
    counter->Increment(std::max(0.0, total - counter->Value()));
  }
}

void Metrics::observe_at(MetricId id, size_t at, double value) {
  if (auto* const histogram = impl_->histograms[static_cast<size_t>(id)].find(at)) {
    histogram->Observe(value);
  }
}

void Metrics::count_http(Route route, int status) {
  const std::string text = std::to_string(status);
  const auto code = static_cast<size_t>(std::find(kCodeNames.begin(), kCodeNames.end() - 1, text) -
                                        kCodeNames.begin());
  add_at(MetricId::http_requests, static_cast<size_t>(route) * kCodeNames.size() + code, 1);
}

std::shared_ptr<void> Metrics::collect(Collector collector) {
  std::lock_guard lock(impl_->scraping);
  impl_->collectors.push_back(std::move(collector));
  const auto at = std::prev(impl_->collectors.end());
  return std::shared_ptr<void>(impl_.get(), [impl = impl_, at](void*) {
    std::lock_guard guard(impl->scraping);
    impl->collectors.erase(at);
  });
}

void Metrics::name_model(std::string name) {
  std::lock_guard lock(impl_->scraping);
  impl_->options.model_name = std::move(name);
}

std::string Metrics::scrape() {
  std::lock_guard lock(impl_->scraping);
  for (const Collector& collector : impl_->collectors) collector(*this);
  if (impl_->options.roles.has(Role::process)) report_process(*this);
  auto families = impl_->registry.Collect();
  if (impl_->options.vllm_aliases) {
    append_aliases(vllm_aliases(), impl_->options.model_name, families);
  }
  return prometheus::TextSerializer().Serialize(families);
}

std::shared_ptr<Metrics> no_metrics() {
  return std::make_shared<Metrics>(MetricsOptions{RoleSet(), false, ""});
}

}  // namespace cedar::monitoring
