// `cedar bench serve`: load on a running server, or on the gateway alone with a synthetic source of tokens behind it.

#include <algorithm>
#include <cstdio>
#include <string>

#include "apps/api_key.h"
#include "apps/commands.h"
#include "apps/options.h"
#include "bench/serve/synthetic_report.h"
#include "bench/serve/synthetic_run.h"
#include "bench/serve/url_run.h"
#include "bench/support/report.h"

namespace cedar::bench {
namespace {

using apps::integer_in;
using apps::number_in;
using Json = nlohmann::ordered_json;

struct Options {
  bool synthetic = false;
  SyntheticOptions load;
  double slow_share = 0.1;
  std::string url;
  std::string key_file;
  UrlOptions users;
  int64_t prompt_tokens = 0;  // 0: what the kind of load has by itself
  int64_t answer_tokens = 0;
  std::string machine;
  std::string json_path;
  std::string command;
};

Json report_head(const Options& options, const char* kind) {
  return {{"benchmark", "serve"},
          {"kind", kind},
          {"command", options.command},
          {"machine", options.machine},
          {"date", utc_date()}};
}

/// Whether all that was read is as it should be.
Result<bool> run_synthetic_pair(const Options& options) {
  CEDAR_TRY(ReportFile file, ReportFile::open(options.json_path));
  CEDAR_TRY(const auto tokenizer, model::Tokenizer::load(CEDAR_DEMO_MODEL_DIR "/tokenizer.json"));
  CEDAR_TRY(const TokenScript script, TokenScript::create(*tokenizer));
  Json report = report_head(options, "synthetic");
  report["tokens_per_s_of_a_stream"] = options.load.server.source.tokens_per_s;
  report["batches"] = options.load.server.source.batches;
  report["answer_tokens"] = options.load.tokens;
  report["prompt_tokens"] = options.load.prompt_tokens;
  report["streams_per_connection"] = options.load.streams_per_connection;
  report["io_threads"] = options.load.server.io_threads;
  report["runs"] = Json::array();
  bool good = true;
  const auto one = [&](const char* title, double slow_share) -> Status {
    SyntheticOptions load = options.load;
    load.slow_share = slow_share;
    CEDAR_TRY(const SyntheticResult result, run_synthetic(load, script, title));
    print(title, result);
    std::fflush(stdout);
    report["runs"].push_back(to_json(load, result));
    good = good && all_received(result);
    return {};
  };
  CEDAR_CHECK_OK(one("all read", 0));
  if (options.slow_share > 0) CEDAR_CHECK_OK(one("some do not read", options.slow_share));
  CEDAR_CHECK_OK(file.write(report));
  return good;
}

/// Whether every request was answered.
Result<bool> run_users(Options options) {
  CEDAR_TRY(options.users.url, apps::parse_ws_url(options.url));
  if (options.users.url.secure) {
    return make_error(Errc::invalid_argument, "--url: must begin with ws://; TLS is not measured");
  }
  CEDAR_TRY(options.users.key, apps::read_api_key(options.key_file));
  CEDAR_TRY(ReportFile file, ReportFile::open(options.json_path));
  CEDAR_TRY(const UrlResult result, run_url(options.users));
  print(result);
  Json report = report_head(options, "users");
  report.update(to_json(options.users, result));
  CEDAR_CHECK_OK(file.write(report));
  return result.failed == 0;
}

void declare_users(CLI::App& app, Options& o) {
  const std::string group = "With --url";
  UrlOptions& users = o.users;
  app.add_option("--url", o.url, "a running server's WebSocket address (ws://127.0.0.1:8080)")
      ->group(group);
  app.add_option("--api-key-file,--key-file", o.key_file,
                 "file whose first line is the API key (default: variable CEDAR_API_KEY)")
      ->group(group);
  app.add_option("--model", users.model, "model of the requests (default: the server's)")
      ->group(group);
  app.add_option("--requests,--num-prompts", users.requests, "how many")
      ->check(integer_in(1, 10000000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--request-rate", users.request_rate,
                 "arrivals per second, at random; 0: as soon as --concurrency allows")
      ->check(number_in(0, 1e6))
      ->capture_default_str()
      ->group(group);
  app.add_option("--concurrency,--max-concurrency", users.concurrency,
                 "requests at a time, at most")
      ->check(integer_in(1, 100000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", users.seed, "of the prompts and of the arrivals")->group(group);
}

void declare_synthetic(CLI::App& app, Options& o) {
  const std::string group = "With --synthetic";
  SyntheticOptions& load = o.load;
  app.add_flag("--synthetic", o.synthetic,
               "the gateway in a process of its own, with a source of tokens in the engine's place")
      ->group(group);
  app.add_option("--streams", load.streams, "answers at the same time")
      ->check(integer_in(1, 100000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--streams-per-connection", load.streams_per_connection,
                 "answers that share a connection")
      ->check(integer_in(1, 32))
      ->capture_default_str()
      ->group(group);
  app.add_option("--token-rate", load.server.source.tokens_per_s,
                 "tokens per second of each answer")
      ->check(number_in(0.1, 10000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--batches", load.server.source.batches,
                 "the streams are dealt to that many batches, whose tokens come at the same moment")
      ->check(integer_in(1, 100000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--ramp", load.ramp_s, "seconds over which the requests are spread")
      ->check(number_in(0, 600))
      ->capture_default_str()
      ->group(group);
  app.add_option("--slow-share", o.slow_share,
                 "a second run, in which this share of the connections reads nothing; 0: none")
      ->check(number_in(0, 0.9))
      ->capture_default_str()
      ->group(group);
  app.add_flag("--resumable", load.resumable,
               "the server keeps the events for clients that come back")
      ->group(group);
  app.add_option("--io-threads", load.server.io_threads, "of the gateway")
      ->check(integer_in(1, 64))
      ->capture_default_str()
      ->group(group);
}

}  // namespace
}  // namespace cedar::bench

namespace cedar::apps {

int run_bench_serve(int argc, char** argv) {
  bench::Options options;
  options.command = bench::command_text("cedar bench", argc, argv);
  CLI::App app{"Load on the gateway: on a running server, or with a synthetic source of tokens.",
               "cedar bench serve"};
  bench::declare_users(app, options);
  bench::declare_synthetic(app, options);
  app.add_option("--prompt-tokens,--random-input-len", options.prompt_tokens,
                 "about (default: 3080; 154 with --synthetic)")
      ->check(integer_in(1, 1 << 20));
  app.add_option("--answer-tokens,--random-output-len", options.answer_tokens,
                 "(default: 20, a 154th of the prompt; 1000 with --synthetic)")
      ->check(integer_in(1, 1 << 20));
  app.add_option("--machine", options.machine, "name of this machine, for the report");
  app.add_option("--json", options.json_path, "write the figures to this file");
  if (const auto status = apps::parse_options(app, argc, argv)) return *status;
  if (options.synthetic == !options.url.empty()) {
    std::fputs("cedar bench serve: give either --url or --synthetic\n", stderr);
    return 2;
  }
  auto& load = options.load;
  if (options.prompt_tokens > 0)
    load.prompt_tokens = options.users.prompt_tokens = options.prompt_tokens;
  if (options.answer_tokens > 0) load.tokens = options.users.answer_tokens = options.answer_tokens;
  load.server.max_connections =
      std::max(load.server.max_connections, load.streams / load.streams_per_connection + 64);
  const auto good =
      options.synthetic ? bench::run_synthetic_pair(options) : bench::run_users(options);
  if (!good) {
    std::fprintf(stderr, "cedar bench serve: %s\n", good.error().message().c_str());
    return good.error().code == Errc::invalid_argument ? 2 : 1;
  }
  return *good ? 0 : 1;
}

}  // namespace cedar::apps
