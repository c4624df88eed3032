#pragma once
// What a process counts, and the text Prometheus scrapes. One object per process, made by whoever starts it and passed down.
// All methods may be called from any thread. A family that the process does not export costs a look into a table: those who
// count need not know who asks.
//
// Families are those of metric_table.h. Label values are enumerations (metric_labels.h), never what a client sent.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include "monitoring/metric_labels.h"
#include "monitoring/metric_table.h"

namespace cedar::monitoring {

struct MetricsOptions {
  RoleSet roles = RoleSet::all();
  bool vllm_aliases = false;
  std::string model_name;  // label of the aliases; name_model() later
};

class Metrics {
 public:
  explicit Metrics(MetricsOptions options = {});
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// Counters and gauges. No allocation and no lock, but for the first time of a sparse series.
  void add(MetricId id, double amount = 1) { add_at(id, 0, amount); }
  template <class Label>
  requires std::is_enum_v<Label>
  void add(MetricId id, Label label, double amount = 1) {
    add_at(id, static_cast<size_t>(label), amount);
  }
  /// Gauges.
  void set(MetricId id, double value) { set_at(id, 0, value); }
  template <class Label>
  requires std::is_enum_v<Label>
  void set(MetricId id, Label label, double value) {
    set_at(id, static_cast<size_t>(label), value);
  }
  /// A counter that is kept elsewhere has come to `total`; it never goes back.
  void raise(MetricId id, double total) { raise_at(id, 0, total); }
  template <class Label>
  requires std::is_enum_v<Label>
  void raise(MetricId id, Label label, double total) {
    raise_at(id, static_cast<size_t>(label), total);
  }
  /// Histograms.
  void observe(MetricId id, double value) { observe_at(id, 0, value); }
  template <class Label>
  requires std::is_enum_v<Label>
  void observe(MetricId id, Label label, double value) {
    observe_at(id, static_cast<size_t>(label), value);
  }
  void count_http(Route route, int status);

  /// Called before every scrape, one scrape at a time, as long as the handle lives: for what is kept elsewhere. Must not
  /// touch the list of collectors.
  using Collector = std::function<void(Metrics&)>;
  [[nodiscard]] std::shared_ptr<void> collect(Collector collector);

  void name_model(std::string name);

  /// Prometheus text format 0.0.4.
  std::string scrape();

 private:
  void add_at(MetricId id, size_t at, double amount);
  void set_at(MetricId id, size_t at, double value);
  void raise_at(MetricId id, size_t at, double total);
  void observe_at(MetricId id, size_t at, double value);

  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// For those who are given none: exports nothing.
std::shared_ptr<Metrics> no_metrics();

}  // namespace cedar::monitoring
