// `cedar serve`: every role in one process, until a signal says stop.

#include <CLI/CLI.hpp>

#include <cstdio>
#include <optional>
#include <string>

#include "actors/system.h"
#include "apps/commands.h"
#include "apps/model_setup.h"
#include "apps/node_options.h"
#include "apps/options.h"
#include "apps/serve_options.h"
#include "apps/stop_signals.h"
#include "config/serve_config.h"
#include "core/log.h"
#include "core/thread_pool.h"
#include "gateway/gateway.h"
#include "monitoring/metrics.h"
#include "monitoring/trace.h"

namespace cedar::apps {
namespace {

using Milliseconds = std::chrono::milliseconds;

int fail(const std::string& message) {
  std::fprintf(stderr, "cedar serve: %s\n", message.c_str());
  return 1;
}

/// Command line over file over defaults.
struct Arguments {
  std::string config_file;
  std::string model, name, host, thinking, replay, device, trace, cache_directory;
  std::optional<int64_t> port, threads, max_sequences, max_context, cache_mib;
};

void declare(CLI::App& app, Arguments& a) {
  app.add_option("--config", a.config_file, "TOML file with settings (docs/config.md)");
  app.add_option("--model", a.model, "checkpoint directory (default: the demo model)");
  app.add_option("--name", a.name, "the model's id in the API (default: the directory's name)");
  app.add_option("--host", a.host, "address to listen on (default 127.0.0.1)");
  app.add_option("--port", a.port, "0: any free port (default 8080)")->check(any_integer());
  app.add_option("--threads", a.threads, "CPU threads per stage (default: all usable processors)")
      ->check(any_integer());
  app.add_option("--max-sequences", a.max_sequences, "requests in flight (default 8)")
      ->check(any_integer());
  app.add_option("--cache-mib", a.cache_mib, "memory of the KV block cache; 0: none (default 64)")
      ->check(any_integer());
  app.add_option("--cache-directory", a.cache_directory,
                 "keeps KV blocks there, across restarts (default: nowhere)");
  app.add_option("--max-context", a.max_context,
                 "tokens of prompt and answer (default: what the model allows)")
      ->check(any_integer());
  app.add_option("--default-thinking", a.thinking,
                 "for requests that do not say (default: on; off for the demo model)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--replay", a.replay, "how the decoder rebuilds its windows (default bounded)")
      ->check(CLI::IsMember({"bounded", "exact"}));
  app.add_option("--device", a.device, "cpu, cuda or cuda:N (default cpu)");
  app.add_option("--trace", a.trace, "write what happens when to this file (docs/tracing.md)");
}

/// A setting that the command line gave is complained of by the name it has there.
Error by_flag(Error error, const Arguments& a) {
  struct Flag {
    const char* setting;
    const char* name;
    bool given;
  };
  const Flag flags[] = {
      {"http.port ", "--port ", a.port.has_value()},
      {"engine.threads ", "--threads ", a.threads.has_value()},
      {"engine.max_sequences ", "--max-sequences ", a.max_sequences.has_value()},
      {"engine.max_context_tokens ", "--max-context ", a.max_context.has_value()},
      {"actors.cache_mib ", "--cache-mib ", a.cache_mib.has_value()},
  };
  for (const Flag& flag : flags) {
    const std::string setting = flag.setting;
    if (flag.given && error.context.rfind(setting, 0) == 0) {
      error.context.replace(0, setting.size(), flag.name);
    }
  }
  return error;
}

Result<config::ServeConfig> read_config(const Arguments& a) {
  config::ServeConfig c;
  if (!a.config_file.empty()) {
    CEDAR_TRY(c, config::load_serve_config(a.config_file));
  }
  const auto text = [](const std::string& from, std::string& to) {
    if (!from.empty()) to = from;
  };
  const auto number = [](std::optional<int64_t> from, int64_t& to) { to = from.value_or(to); };
  text(a.model, c.model.directory);
  text(a.name, c.model.name);
  text(a.host, c.http.host);
  text(a.thinking, c.model.thinking);
  text(a.replay, c.engine.replay);
  text(a.device, c.model.device);
  text(a.cache_directory, c.actors.cache_directory);
  number(a.port, c.http.port);
  number(a.threads, c.engine.threads);
  number(a.max_sequences, c.engine.max_sequences);
  number(a.max_context, c.engine.max_context_tokens);
  number(a.cache_mib, c.actors.cache_mib);
  if (const Status valid = config::validate(c); !valid) return by_flag(valid.error(), a);
  return c;
}

int serve(const config::ServeConfig& c, const std::string& trace_file) {
  const bool has_certificate = !c.http.tls_certificate.empty();
  StopSignals signals(has_certificate ? Hangup::reloads : Hangup::stops);
  // Before the model, which takes minutes to load: mistakes are told at once.
  const auto access = gateway_options(c);
  if (!access) {
    fail(access.error().context);
    return 2;
  }
  const auto device = parse_device(c.model.device);
  if (!device) return fail(device.error().message());
  const int threads =
      c.engine.threads > 0 ? static_cast<int>(c.engine.threads) : usable_processors();
  const std::string directory =
      c.model.directory.empty() ? demo_model_directory() : c.model.directory;
  const auto files =
      load_model_files(directory, threads, *device, [&signals] { return signals.requested(); });
  if (!files && files.error().code == Errc::cancelled) {
    log::info("serve", "stopped while it loaded", {{"signal", signals.wait()}});
    return 0;
  }
  if (!files) return fail(files.error().message());

  const gateway::ModelCard card = served_model(c, files->text, directory);

  // In this order, so that sinks, clients and counters outlive those who use them.
  const auto metrics = std::make_shared<monitoring::Metrics>(monitoring::MetricsOptions{
      {monitoring::Role::process, monitoring::Role::gateway, monitoring::Role::encoder,
       monitoring::Role::decoder, monitoring::Role::cache},
      c.http.metrics_aliases == "vllm",
      card.name});
  std::unique_ptr<gateway::Gateway> gateway;
  actors::SystemOptions options = system_options(c, *device, threads);
  options.engine.constraints = make_constraints(files->text);
  options.cache.identity = cache_identity(files->text);
  options.metrics = metrics;
  if (!trace_file.empty()) {
    auto trace = monitoring::Trace::open({trace_file, "cedar serve", 1});
    if (!trace) return fail(trace.error().message());
    options.trace = std::move(*trace);
  }
  auto system = actors::System::start(files->model, options);
  if (!system) return fail(system.error().message());
  auto started = gateway::Gateway::start(*access, card, (*system)->client(), *metrics);
  if (!started) return fail(started.error().message());
  gateway = std::move(*started);

  const char* scheme = has_certificate ? "https" : "http";
  std::printf(
      "cedar serves %s on %s://%s:%u (context %lld tokens, %d threads)\n", card.name.c_str(),
      scheme,
      (c.http.host.find(':') == std::string::npos ? c.http.host : '[' + c.http.host + ']').c_str(),
      static_cast<unsigned>(gateway->port()), static_cast<long long>(card.context_tokens), threads);
  std::fflush(stdout);
  const auto reload = [&gateway] {
    const Status reloaded = gateway->reload_certificate();
    if (reloaded) log::info("serve", "certificate read again");
    if (!reloaded) log::warn("serve", "certificate kept", {{"reason", reloaded.error().context}});
  };
  const char* signal = signals.wait(reload);
  log::info("serve", "stopping", {{"signal", signal}});
  const Milliseconds grace(c.http.shutdown_grace_ms);
  gateway->begin_stop(grace);
  (*system)->drain(grace);
  gateway->finish_stop(Milliseconds(1000));
  log::info("serve", "stopped");
  return 0;
}

}  // namespace

int run_serve(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Serves a model over HTTP and WebSocket.", "cedar serve");
  declare(app, arguments);
  if (const auto status = parse_options(app, argc, argv)) return *status;
  const auto config = read_config(arguments);
  if (!config) {
    fail(config.error().context);
    return 2;
  }
  return serve(*config, arguments.trace);
}

}  // namespace cedar::apps
