#pragma once
// Names that dashboards of other servers know, beside Cedar's own. Not for new dashboards.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "monitoring/metric_table.h"

namespace prometheus {
struct MetricFamily;
}

namespace cedar::monitoring {

/// One series of an alias: a series of a family, or the sum of all of them.
struct AliasSeries {
  std::string_view value;  // of the family's first label; empty: the only series, or the sum of all
  std::string_view as = {};  // value of the alias's own label, where it has one
};

struct MetricAlias {
  std::string_view name;  // as vLLM calls it
  MetricId source;
  std::string_view help;
  std::string_view label = {};  // its own, besides model_name and engine
  std::vector<AliasSeries> series = {{}};
};

std::span<const MetricAlias> vllm_aliases();

/// Appends the aliases of the families that are there.
void append_aliases(std::span<const MetricAlias> aliases, std::string_view model_name,
                    std::vector<prometheus::MetricFamily>& families);

}  // namespace cedar::monitoring
