// `cedar bench serve`: load on the gateway, of a running server or of one with a synthetic source of tokens.

#include <algorithm>
#include <cstdio>
#include <string>

#include "apps/commands.h"
#include "apps/options.h"
#include "bench/serve/synthetic_report.h"
#include "bench/serve/synthetic_run.h"
#include "bench/support/report.h"

namespace cedar::bench {
namespace {

using apps::integer_in;
using apps::number_in;

struct Options {
  bool synthetic = false;
  SyntheticOptions load;
  double slow_share = 0.1;
  std::string machine;
  std::string json_path;
  std::string command;
};

/// Whether all that was read is as it should be.
Result<bool> run_all(const Options& options) {
  CEDAR_TRY(ReportFile file, ReportFile::open(options.json_path));
  CEDAR_TRY(const auto tokenizer, model::Tokenizer::load(CEDAR_DEMO_MODEL_DIR "/tokenizer.json"));
  CEDAR_TRY(const TokenScript script, TokenScript::create(*tokenizer));
  nlohmann::ordered_json report = {
      {"benchmark", "serve"},
      {"command", options.command},
      {"machine", options.machine},
      {"date", utc_date()},
      {"tokens_per_s_of_a_stream", options.load.server.source.tokens_per_s},
      {"batches", options.load.server.source.batches},
      {"tokens_of_an_answer", options.load.tokens},
      {"prompt_tokens", options.load.prompt_tokens},
      {"streams_per_connection", options.load.streams_per_connection},
      {"io_threads", options.load.server.io_threads},
      {"runs", nlohmann::ordered_json::array()}};
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

void declare(CLI::App& app, Options& o) {
  SyntheticOptions& load = o.load;
  app.add_flag(
      "--synthetic", o.synthetic,
      "the gateway in a process of its own, with a source of tokens in the engine's place");
  app.add_option("--streams", load.streams, "answers at the same time")
      ->check(integer_in(1, 100000))
      ->capture_default_str();
  app.add_option("--streams-per-connection", load.streams_per_connection,
                 "answers that share a connection")
      ->check(integer_in(1, 32))
      ->capture_default_str();
  app.add_option("--answer-tokens", load.tokens, "tokens of an answer")
      ->check(integer_in(1, 100000))
      ->capture_default_str();
  app.add_option("--prompt-tokens", load.prompt_tokens, "length of a prompt, about")
      ->check(integer_in(1, 100000))
      ->capture_default_str();
  app.add_option("--token-rate", load.server.source.tokens_per_s,
                 "tokens per second of each answer")
      ->check(number_in(0.1, 10000))
      ->capture_default_str();
  app.add_option("--batches", load.server.source.batches,
                 "the streams are dealt to that many batches, whose tokens come at the same moment")
      ->check(integer_in(1, 100000))
      ->capture_default_str();
  app.add_option("--ramp", load.ramp_s, "seconds over which the requests are spread")
      ->check(number_in(0, 600))
      ->capture_default_str();
  app.add_option("--slow-share", o.slow_share,
                 "a second run, in which this share of the connections reads nothing; 0: none")
      ->check(number_in(0, 0.9))
      ->capture_default_str();
  app.add_flag("--resumable", load.resumable,
               "the server keeps the events for clients that come back");
  app.add_option("--io-threads", load.server.io_threads, "of the gateway")
      ->check(integer_in(1, 64))
      ->capture_default_str();
  app.add_option("--machine", o.machine, "name of this machine, for the report");
  app.add_option("--json", o.json_path, "write the figures to this file");
}

}  // namespace
}  // namespace cedar::bench

namespace cedar::apps {

int run_bench_serve(int argc, char** argv) {
  bench::Options options;
  options.command = bench::command_text("cedar bench", argc, argv);
  CLI::App app{"Load on the gateway.", "cedar bench serve"};
  bench::declare(app, options);
  if (const auto status = apps::parse_options(app, argc, argv)) return *status;
  if (!options.synthetic) {
    std::fputs("cedar bench serve: --synthetic is missing\n", stderr);
    return 2;
  }
  auto& load = options.load;
  load.server.max_connections =
      std::max(load.server.max_connections, load.streams / load.streams_per_connection + 64);
  const auto good = bench::run_all(options);
  if (!good) {
    std::fprintf(stderr, "cedar bench serve: %s\n", good.error().message().c_str());
    return 1;
  }
  return *good ? 0 : 1;
}

}  // namespace cedar::apps
