// `cedar node NAME`: the roles that a cluster's file gives to one process, until a signal says stop.

#include <CLI/CLI.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster_node.h"
#include "actors/engram_service.h"
#include "apps/commands.h"
#include "apps/model_setup.h"
#include "apps/node_options.h"
#include "apps/options.h"
#include "apps/serve_options.h"
#include "apps/stop_signals.h"
#include "config/cluster_config.h"
#include "core/log.h"
#include "gateway/gateway.h"
#include "gateway/node_page.h"
#include "monitoring/metrics.h"
#include "monitoring/trace.h"

namespace cedar::apps {
namespace {

using Event = actors::ClusterNodeOptions::Event;
using Milliseconds = std::chrono::milliseconds;

int fail(const std::string& message) {
  std::fprintf(stderr, "cedar node: %s\n", message.c_str());
  return 1;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text.append(text.empty() ? "" : ", ").append(word);
  return text;
}

/// What the terminal is told of the node's memberships, and when the process has to end because of them.
class Watch {
 public:
  Watch(std::string ready_line, size_t gateways)
      : ready_line_(std::move(ready_line)), gateways_(gateways) {}

  void on_event(Event event, const std::string& who, const Error& error) {
    std::lock_guard lock(mutex_);
    switch (event) {
      case Event::registered:
        log::info("node", "registered", {{"gateway", who}});
        refused_.erase(who);
        if (!said_ready_) std::printf("%s, registered with %s\n", ready_line_.c_str(), who.c_str());
        std::fflush(stdout);
        said_ready_ = true;
        return;
      case Event::lost:
        log::warn("node", "not registered, tries again",
                  {{"gateway", who}, {"reason", error.context}});
        return;
      case Event::refused:
        log::error("node", "refused", {{"gateway", who}, {"reason", error.message()}});
        refused_[who] = error.context;
        // Whoever refuses now may have been restarted with other settings; it is asked again. A node that nobody
        // wants has to say so. A later life of this node makes this one superfluous at once.
        if (error.code == Errc::stale_generation || refused_.size() == gateways_) {
          end("gateway " + who + " refuses it: " + error.context);
        }
        return;
      case Event::stage_given_up: return end("the " + who + " died too often");
    }
  }
  /// Why the process ends without being told to.
  std::optional<std::string> reason() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }

 private:
  void end(std::string reason) {
    if (reason_) return;
    reason_ = std::move(reason);
    ::kill(::getpid(), SIGTERM);  // wakes wait()
  }

  mutable std::mutex mutex_;
  std::string ready_line_;
  size_t gateways_;
  bool said_ready_ = false;
  std::map<std::string, std::string> refused_;
  std::optional<std::string> reason_;
};

/// The exit status of a node that has not loaded what it needs.
int loading_failed(const Error& error, StopSignals& signals) {
  if (error.code != Errc::cancelled) return fail(error.message());
  log::info("node", "stopped while it loaded", {{"signal", signals.wait()}});
  return 0;
}

/// Where `metrics` says; null: nowhere. `running` is null while the node loads.
Result<std::unique_ptr<gateway::NodePage>> start_page(
    const config::NodeSettings& node, const std::atomic<const actors::ClusterNode*>& running,
    const std::shared_ptr<monitoring::Metrics>& metrics) {
  if (node.metrics.empty()) return std::unique_ptr<gateway::NodePage>();
  CEDAR_TRY(const config::HostPort address, config::parse_host_port(node.metrics));
  gateway::NodePageOptions options;
  options.host = address.host;
  options.port = address.port;
  gateway::NodePageSources sources;
  sources.ready = [&running] {
    const actors::ClusterNode* const self = running;
    return self != nullptr && self->ready();
  };
  sources.metrics = [metrics] { return metrics->scrape(); };
  auto page = gateway::NodePage::start(options, std::move(sources));
  if (page) {
    log::info("node", "serves /metrics, /livez and /ready",
              {{"host", address.host}, {"port", int64_t{(*page)->port()}}});
  }
  return page;
}

int run(const config::ClusterConfig& config, const config::NodeSettings& node,
        const std::string& trace_file) {
  const config::ServeConfig serve = config.serve_config(node);
  const bool has_certificate = node.has("gateway") && !serve.http.tls_certificate.empty();
  StopSignals signals(has_certificate ? Hangup::reloads : Hangup::stops);
  auto options = node_options(config, node);
  if (!options) {
    fail(options.error().context);
    return 2;
  }
  const bool is_gateway = options->door.has_value();
  const bool has_stages = options->encoder || options->decoder;
  // Before the model, which takes minutes to load: mistakes are told at once.
  const auto gateway_settings = gateway_options(serve);
  if (!gateway_settings && is_gateway) {
    fail(gateway_settings.error().context);
    return 2;
  }
  const auto metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsOptions{
      metric_roles(*options, node), serve.http.metrics_aliases == "vllm", ""});
  options->system.metrics = metrics;
  // Before the model, too: a node that loads is alive.
  std::atomic<const actors::ClusterNode*> running{nullptr};
  auto page = start_page(node, running, metrics);
  if (!page) return fail(page.error().message());
  const std::string directory =
      node.model_directory.empty() ? demo_model_directory() : node.model_directory;

  ModelFiles files;
  if (has_stages) {
    const auto& place =
        options->encoder_pipeline ? options->encoder_pipeline : options->decoder_pipeline;
    const model::Role role = !options->decoder ? model::Role::encoder
                             : place           ? model::Role::decoder
                                               : model::Role::all;
    std::optional<model::LayerRange> part;
    if (place) {
      part = place->ranks[place->rank];
      if (const Status ends = check_pipeline_ends(config); !ends) {
        fail(ends.error().context);
        return 2;
      }
    }
    auto loaded = load_model_files(
        directory, options->system.engine.threads, options->system.engine.device,
        [&signals] { return signals.requested(); }, role, part);
    if (!loaded) return loading_failed(loaded.error(), signals);
    files = std::move(*loaded);
    if (options->decoder) options->system.engine.constraints = make_constraints(files.text);
  } else {
    auto text = load_model_text(directory);
    if (!text) return fail(text.error().message());
    files.text = std::move(*text);
  }
  EngramFiles engram;
  if (node.has("engram")) {
    const engine::EngramShard shard{static_cast<int32_t>(node.engram_shard),
                                    static_cast<int32_t>(node.engram_shards)};
    auto loaded =
        load_engram_tables(directory, files.text.config, shard, node.engram_memory == "resident",
                           [&signals] { return signals.requested(); });
    if (!loaded) return loading_failed(loaded.error(), signals);
    engram = std::move(*loaded);
    options->services.push_back(
        actors::engram_service(engram.tables, {options->system.engine.threads, metrics}));
  }
  identify_model(*options, files.text,
                 files.model ? &files.model->checkpoint : engram.checkpoint.get());

  std::shared_ptr<monitoring::Trace> trace;
  if (!trace_file.empty()) {
    auto opened = monitoring::Trace::open({trace_file, "cedar node " + node.name, node.id().value});
    if (!opened) return fail(opened.error().message());
    trace = options->system.trace = std::move(*opened);
  }

  Watch watch("cedar node " + node.name + " is ready: " + joined(node.roles),
              options->gateways.size());
  options->on_event = [&watch](Event event, const std::string& who, const Error& error) {
    watch.on_event(event, who, error);
  };
  // In this order, so that sinks and clients outlive those who use them.
  std::unique_ptr<gateway::Gateway> gateway;
  auto started = actors::ClusterNode::start(files.model, *options);
  if (!started) return fail(started.error().message());
  const std::unique_ptr<actors::ClusterNode> self = std::move(*started);
  running = self.get();
  if (is_gateway) {
    const gateway::ModelCard card = served_model(serve, files.text, directory);
    metrics->name_model(card.name);
    auto http = gateway::Gateway::start(*gateway_settings, card, self->client(), *metrics);
    if (!http) {
      page->reset();  // it asks the node
      return fail(http.error().message());
    }
    gateway = std::move(*http);
    const char* scheme = serve.http.tls_certificate.empty() ? "http" : "https";
    std::printf("cedar node %s serves %s on %s://%s:%u (nodes register at %s)\n", node.name.c_str(),
                card.name.c_str(), scheme, serve.http.host.c_str(),
                static_cast<unsigned>(gateway->port()), node.control.c_str());
    std::fflush(stdout);
  }

  const auto reload = [&gateway] {
    const Status reloaded = gateway->reload_certificate();
    if (reloaded) log::info("node", "certificate read again");
    if (!reloaded) log::warn("node", "certificate kept", {{"reason", reloaded.error().context}});
  };
  const char* signal = signals.wait(reload);
  log::info("node", "stopping", {{"signal", signal}});
  const auto reason = watch.reason();
  const Milliseconds grace(reason       ? 0
                           : is_gateway ? serve.http.shutdown_grace_ms
                                        : config.cluster.drain_grace_ms);
  if (gateway) gateway->begin_stop(grace);
  self->drain(grace);
  if (gateway) gateway->finish_stop(Milliseconds(1000));
  page->reset();
  self->close();
  if (trace) trace->finish();
  log::info("node", "stopped");
  const int status = reason ? fail("node " + node.name + " ends: " + *reason) : 0;
  // Not through destructors: see ~ClusterNode. Everything that has to be told or freed elsewhere has been.
  std::fflush(nullptr);
  std::_Exit(status);
}

}  // namespace

int run_node(int argc, char** argv) {
  std::string name;
  std::string file;
  std::string trace_file;
  CLI::App app("Runs one node of a cluster.", "cedar node");
  app.add_option("NAME", name, "which node of the file this process is")->required();
  app.add_option("--config", file, "the cluster's file (docs/config.md)")->required();
  app.add_option("--trace", trace_file, "write what happens when to this file (docs/tracing.md)");
  if (const auto status = parse_options(app, argc, argv)) return *status;
  const auto config = config::load_cluster_config(file);
  if (!config) {
    fail(config.error().context);
    return 2;
  }
  const auto node = config->node(name);
  if (!node) {
    std::vector<std::string> names;
    for (const config::NodeSettings& known : config->nodes) names.push_back(known.name);
    fail(file + " has no node \"" + name + "\"; it has " + joined(names));
    return 2;
  }
  return run(*config, *node, trace_file);
}

}  // namespace cedar::apps
