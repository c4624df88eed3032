#include "monitoring/describe_metrics.h"

#include <string_view>

#include "monitoring/metric_aliases.h"
#include "monitoring/metric_table.h"

namespace cedar::monitoring {
namespace {

constexpr std::string_view kHead =
    "# Metrics\n"
    "\n"
    "Written by `cedar config metrics`; a test compares it with the program. What the alerts on "
    "them mean: [operations.md](operations.md).\n"
    "\n"
    "A gateway and `cedar serve` answer `GET /metrics` at their HTTP port; a node without a "
    "gateway "
    "does at the address of its setting `metrics` ([config.md](config.md)). A process exports the "
    "families of its roles, and nothing twice: sums over instances are right. What a gateway has "
    "heard from its nodes is `cedar_cluster_*`, the same from every gateway. Label values are "
    "fixed sets; nothing that a client sends becomes one. Names and buckets stay as they are; "
    "after a rename both names are there for a release.\n";

std::string code(std::string_view text) { return '`' + std::string(text) + '`'; }

std::string describe(const MetricRow& row) {
  std::string labels;
  for (const MetricLabel& label : row.labels) {
    if (label.name.empty()) continue;
    if (!labels.empty()) labels += "; ";
    labels += code(label.name) + ": ";
    if (row.id == MetricId::build_info) {
      labels += "the version";
      continue;
    }
    std::string values;
    for (const std::string_view value : label.values) {
      values.append(values.empty() ? "" : ", ").append(value);
    }
    labels += values;
  }
  return "| " + code(row.name) + " | " + std::string(to_string(row.type)) + " | " +
         std::string(row.unit) + " | " + std::string(row.help) + " | " + labels + " |\n";
}

std::string heading(Role role) {
  switch (role) {
    case Role::process: return "Every process";
    case Role::gateway: return "Gateways";
    case Role::encoder: return "Encoders";
    case Role::decoder: return "Decoders";
    case Role::data_plane: return "Nodes with a data plane";
    case Role::cache: return "Caches";
    case Role::engram_client: return "Stages that take Engram rows from services";
    case Role::engram: return "Engram services";
    case Role::index_client: return "Stages that may spread their index keys";
    case Role::indexer: return "Indexers";
    case Role::count: break;
  }
  return "";
}

std::string list_buckets(Buckets buckets) {
  std::string text;
  for (const double bound : bounds(buckets)) {
    std::string number = std::to_string(bound);
    number.erase(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
    text.append(text.empty() ? "" : ", ").append(number);
  }
  return text;
}

std::string describe_aliases() {
  std::string text =
      "\n## Names of vLLM\n\n"
      "With `http.metrics_aliases = \"vllm\"` a gateway exports these, too, with the labels "
      "`model_name` and `engine` that its dashboards select by.\n\n"
      "| alias | is | |\n|---|---|---|\n";
  for (const MetricAlias& alias : vllm_aliases()) {
    const MetricRow& row = metric_row(alias.source);
    std::string note;
    for (const AliasSeries& series : alias.series) {
      if (series.value.empty()) continue;
      note.append(note.empty() ? "" : ", ");
      note += code(std::string(row.labels[0].name) + "=\"" + std::string(series.value) + '"');
      if (!series.as.empty()) {
        note += " as " + code(std::string(alias.label) + "=\"" + std::string(series.as) + '"');
      }
    }
    text += "| " + code(alias.name) + " | " + code(row.name) + " | " + note + " |\n";
  }
  return text;
}

}  // namespace

std::string describe_metrics() {
  std::string text(kHead);
  Role role = Role::count;
  for (const MetricRow& row : metric_table()) {
    if (row.role != role) {
      role = row.role;
      text += "\n## " + heading(role) +
              "\n\n| name | type | unit | what | labels |\n|---|---|---|---|---|\n";
    }
    text += describe(row);
  }
  text += "\n## Buckets\n\n";
  text += "Of requests and their parts, in seconds: " + list_buckets(Buckets::requests) + ".\n\n";
  text += "Of steps, chunks and transfers, in seconds: " + list_buckets(Buckets::steps) + ".\n\n";
  text += "Of rows: " + list_buckets(Buckets::rows) + ".\n";
  return text + describe_aliases();
}

}  // namespace cedar::monitoring
