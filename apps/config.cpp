// `cedar config`: files of settings checked, shown and described.

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/commands.h"
#include "apps/node_options.h"
#include "apps/serve_options.h"
#include "config/cluster_config.h"
#include "config/serve_config.h"
#include "core/text_file.h"
#include "monitoring/describe_metrics.h"

namespace cedar::apps {
namespace {

constexpr const char* kUsage =
    "usage: cedar config check FILE\n"
    "       cedar config show FILE NODE\n"
    "       cedar config describe\n"
    "       cedar config metrics\n"
    "\n"
    "check     reads a file for `cedar node` or `cedar serve` and says what is wrong with it, for "
    "`cedar serve`\n"
    "          also with the keys and the certificate that it names: exit status 0 when nothing "
    "is, "
    "1 otherwise\n"
    "show      what holds for a node of a cluster, defaults filled in, as TOML\n"
    "describe  every setting with its default and what is allowed, as Markdown (docs/config.md)\n"
    "metrics   everything that is counted, as Markdown (docs/metrics.md)\n";

int complain(const Error& error) {
  std::fprintf(stderr, "cedar config: %s\n", error.context.c_str());
  return 1;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text.append(text.empty() ? "" : ", ").append(word);
  return text;
}

int check_cluster(const std::string& path) {
  const auto config = config::load_cluster_config(path);
  if (!config) return complain(config.error());
  const Status ends = check_pipeline_ends(*config);
  if (!ends && ends.error().code == Errc::invalid_config) return complain(ends.error());
  std::printf("%s: cluster %s, %zu nodes\n", path.c_str(), config->cluster.name.c_str(),
              config->nodes.size());
  for (const config::NodeSettings& node : config->nodes) {
    std::printf("  %-16s %s%s%s%s%s on %s\n", node.name.c_str(), joined(node.roles).c_str(),
                node.control.empty() ? "" : ", control ", node.control.c_str(),
                node.data.empty() ? "" : ", data ", node.data.c_str(), node.device.c_str());
  }
  // The machine that checks the file need not be one of the cluster's.
  const std::pair<const char*, const std::string&> files[] = {
      {"cluster.secret_file", config->cluster.secret_file},
      {"tls.certificate", config->tls.certificate},
      {"tls.key", config->tls.key},
      {"tls.authority", config->tls.authority}};
  for (const auto& [key, file] : files) {
    if (file.empty()) continue;
    const auto content = read_text_file(file);
    if (!content) std::printf("note: %s: %s\n", key, content.error().context.c_str());
  }
  if (!ends) std::printf("note: pipelines: %s\n", ends.error().context.c_str());
  return 0;
}

int check(const std::string& path) {
  const auto text = read_text_file(path, FileKind::any);
  if (!text) return complain(text.error());
  if (config::is_cluster_config(*text)) return check_cluster(path);
  auto config = config::parse_serve_config(*text, path);
  if (!config) return complain(config.error());
  config::resolve_paths(*config, path);
  if (const auto options = gateway_options(*config); !options) return complain(options.error());
  if (const std::string& model = config->model.directory; !model.empty()) {
    const auto content = read_text_file(model + "/config.json");
    if (!content) {
      return complain(
          make_error(Errc::invalid_config, "model.directory: " + content.error().context));
    }
  }
  std::printf("%s: settings of cedar serve, nothing wrong\n", path.c_str());
  return 0;
}

int show(const std::string& path, const std::string& name) {
  const auto config = config::load_cluster_config(path);
  if (!config) return complain(config.error());
  const auto node = config->node(name);
  if (!node) {
    std::fprintf(stderr, "cedar config: %s has no node \"%s\"\n", path.c_str(), name.c_str());
    return 1;
  }
  std::fputs(config::show_node(*config, *node).c_str(), stdout);
  return 0;
}

}  // namespace

int run_config(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  bool help = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    help = help || word == "--help" || word == "-h";
  }
  if (what == "describe" && argc == 2) {
    std::fputs(config::describe_serve_config().c_str(), stdout);
    std::fputs(config::describe_cluster_config().c_str(), stdout);
    return 0;
  }
  if (what == "metrics" && argc == 2) {
    std::fputs(monitoring::describe_metrics().c_str(), stdout);
    return 0;
  }
  if (what == "check" && argc == 3 && !help) return check(argv[2]);
  if (what == "show" && argc == 4 && !help) return show(argv[2], argv[3]);
  std::fputs(kUsage, help ? stdout : stderr);
  return help ? 0 : 2;
}

}  // namespace cedar::apps
