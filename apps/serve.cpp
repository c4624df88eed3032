// `cedar serve`: every role in one process, until a signal says stop.

#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

#include "actors/system.h"
#include "apps/commands.h"
#include "apps/model_setup.h"
#include "apps/options.h"
#include "apps/serve_access.h"
#include "config/serve_config.h"
#include "core/log.h"
#include "core/thread_pool.h"
#include "gateway/gateway.h"
#include "gateway/tls_context.h"
#include "monitoring/metrics.h"

namespace cedar::apps {
namespace {

using Milliseconds = std::chrono::milliseconds;

int fail(const std::string& message) {
  std::fprintf(stderr, "cedar serve: %s\n", message.c_str());
  return 1;
}

/// Blocks the stop signals for this thread and all that it starts, so that wait() is where they arrive. Until
/// then requested() tells of one, so that a start that takes minutes can be given up.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    std::signal(SIGPIPE, SIG_IGN);
  }
  bool requested() const {
    sigset_t pending{};
    sigpending(&pending);
    return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1 ||
           sigismember(&pending, SIGHUP) == 1;
  }
  /// Calls `on_hangup` for every SIGHUP, which is a stop signal without it. After the first stop signal the next one
  /// ends the process at once.
  const char* wait(const std::function<void()>& on_hangup = {}) {
    int signal = 0;
    while (sigwait(&signals_, &signal) == 0 && signal == SIGHUP && on_hangup) on_hangup();
    pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr);
    return signal == SIGINT ? "SIGINT" : signal == SIGHUP ? "SIGHUP" : "SIGTERM";
  }

 private:
  sigset_t signals_{};
};

/// Command line over file over defaults.
struct Arguments {
  std::string config_file;
  std::string model, name, host, thinking, replay, device;
  std::optional<int64_t> port, threads, max_sequences, max_context;
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
  app.add_option("--max-context", a.max_context,
                 "tokens of prompt and answer (default: what the model allows)")
      ->check(any_integer());
  app.add_option("--default-thinking", a.thinking,
                 "for requests that do not say (default: on; off for the demo model)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--replay", a.replay, "how the decoder rebuilds its windows (default bounded)")
      ->check(CLI::IsMember({"bounded", "exact"}));
  app.add_option("--device", a.device, "cpu, cuda or cuda:N (default cpu)");
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
  number(a.port, c.http.port);
  number(a.threads, c.engine.threads);
  number(a.max_sequences, c.engine.max_sequences);
  number(a.max_context, c.engine.max_context_tokens);
  if (const Status valid = config::validate(c); !valid) return by_flag(valid.error(), a);
  return c;
}

actors::SystemOptions system_options(const config::ServeConfig& c, Device device, int threads) {
  actors::SystemOptions options;
  options.engine.device = device;
  options.engine.threads = threads;
  options.engine.max_sequences = static_cast<int32_t>(c.engine.max_sequences);
  options.engine.kv_pool_blocks = c.engine.kv_pool_blocks;
  options.engine.prefill_chunk_tokens = c.engine.prefill_chunk_tokens;
  options.engine.max_context_tokens = c.engine.max_context_tokens;
  options.engine.replay =
      c.engine.replay == "exact" ? engine::ReplayMode::exact : engine::ReplayMode::bounded;
  options.scheduler_threads = c.actors.scheduler_threads;
  options.max_throughput = c.actors.max_throughput;
  options.max_queued = c.actors.max_queued;
  options.cache_bytes = c.actors.cache_mib << 20;
  return options;
}

Result<gateway::GatewayOptions> gateway_options(const config::ServeConfig& c) {
  gateway::GatewayOptions options;
  gateway::HttpOptions& http = options.http;
  http.host = c.http.host;
  http.port = static_cast<uint16_t>(c.http.port);
  http.io_threads = static_cast<int>(c.http.io_threads);
  http.compute_threads = static_cast<int>(c.http.compute_threads);
  http.max_connections = c.http.max_connections;
  http.max_header_bytes = c.http.max_header_bytes;
  http.max_body_bytes = c.http.max_body_bytes;
  http.max_bodies_bytes = c.http.max_bodies_bytes;
  http.header_timeout = Milliseconds(c.http.header_timeout_ms);
  http.body_timeout = Milliseconds(c.http.body_timeout_ms);
  http.idle_timeout = Milliseconds(c.http.idle_timeout_ms);
  http.write_timeout = Milliseconds(c.http.write_timeout_ms);
  http.max_unsent_bytes = c.http.max_unsent_bytes;
  http.request_timeout = Milliseconds(c.http.request_timeout_ms);
  http.tls_certificate = c.http.tls_certificate;
  http.tls_key = c.http.tls_key;
  http.tls_handshake_timeout = Milliseconds(c.http.tls_handshake_timeout_ms);
  if (!http.tls_certificate.empty() || !http.tls_key.empty()) {
    CEDAR_CHECK_OK(gateway::TlsContext::load(http.tls_certificate, http.tls_key));
  }
  CEDAR_CHECK_OK(check_origins(c.http.allowed_origins));
  http.allowed_origins = c.http.allowed_origins;
  http.metrics_need_key = c.http.metrics == "key";
  CEDAR_TRY(options.keys, read_api_keys(c.keys));
  gateway::StreamOptions& stream = options.stream;
  stream.max_message_bytes = c.http.max_body_bytes;
  stream.max_unsent_bytes = c.http.max_unsent_bytes;
  stream.write_timeout = http.write_timeout;
  stream.max_in_flight = c.stream.max_in_flight;
  stream.merge_unsent_bytes = c.stream.merge_unsent_bytes;
  stream.ping_interval = Milliseconds(c.stream.ping_interval_ms);
  stream.idle_timeout = Milliseconds(c.stream.idle_timeout_ms);
  stream.replay_ttl = Milliseconds(c.stream.replay_ttl_ms);
  stream.replay_max_bytes = c.stream.replay_max_bytes;
  stream.max_detached = c.stream.max_detached;
  stream.detach_grace = Milliseconds(c.stream.detach_grace_ms);
  return options;
}

int serve(const config::ServeConfig& c) {
  StopSignals signals;
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

  gateway::ModelCard card =
      make_model_card(*files, directory, c.model.name, c.engine.max_context_tokens);
  card.aliases = c.model.aliases;
  card.default_max_tokens = c.model.default_max_tokens;
  if (c.model.thinking != "auto") card.default_thinking = c.model.thinking == "on";

  // In this order, so that sinks, clients and counters outlive those who use them.
  monitoring::Metrics metrics;
  std::unique_ptr<gateway::Gateway> gateway;
  actors::SystemOptions options = system_options(c, *device, threads);
  options.engine.constraints = make_constraints(*files);
  auto system = actors::System::start(files->model, options);
  if (!system) return fail(system.error().message());
  auto started = gateway::Gateway::start(*access, card, (*system)->client(), metrics);
  if (!started) return fail(started.error().message());
  gateway = std::move(*started);

  const char* scheme = c.http.tls_certificate.empty() ? "http" : "https";
  std::printf("cedar serves %s on %s://%s:%u (context %lld tokens, %d threads)\n",
              card.name.c_str(), scheme, c.http.host.c_str(),
              static_cast<unsigned>(gateway->port()), static_cast<long long>(card.context_tokens),
              threads);
  std::fflush(stdout);
  const auto reload = [&gateway] {
    const Status reloaded = gateway->reload_certificate();
    if (reloaded) log::info("serve", "certificate read again");
    if (!reloaded) log::warn("serve", "certificate kept", {{"reason", reloaded.error().context}});
  };
  const bool has_certificate = !c.http.tls_certificate.empty();
  const char* signal = signals.wait(has_certificate ? reload : std::function<void()>());
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
  return serve(*config);
}

}  // namespace cedar::apps
