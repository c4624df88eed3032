// `cedar generate`: one prompt to the terminal, or a file of prompts to a file of answers. No actors.

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>

#include "apps/commands.h"
#include "apps/generate_batch.h"
#include "apps/model_setup.h"
#include "apps/options.h"
#include "apps/terminal_text.h"
#include "core/thread_pool.h"

namespace cedar::apps {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::string model;
  std::string prompt;
  std::string message;
  std::string chat_file;
  std::string input;
  std::string output = "-";
  std::string replay = "bounded";
  std::string device = "cpu";
  std::string thinking;
  int threads = 0;
  int32_t max_sequences = 8;
  int64_t max_tokens = 0;
  double temperature = 0;
  bool json = false;
  // What to answer. Presence counts: an empty text was given, too.
  const CLI::Option* message_option = nullptr;
  const CLI::Option* prompt_option = nullptr;
  const CLI::Option* chat_option = nullptr;
  const CLI::Option* input_option = nullptr;

  bool is_batch() const { return input_option->count() > 0; }
  /// The file or "-" that is read; empty: none.
  std::string source() const {
    if (is_batch()) return input;
    if (chat_option->count() > 0) return chat_file;
    const std::string& text = message_option->count() > 0 ? message : prompt;
    return text == "-" ? text : std::string();
  }
};

int fail(const std::string& message) {
  std::fprintf(stderr, "cedar generate: %s\n", message.c_str());
  return 1;
}

int wrong_usage(const std::string& message) {
  fail(message);
  return 2;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// One request; the answer's text goes out as it comes.
int run_single(engine::Engine& engine, GenerateJob job, OutputFile& out, bool json, bool terminal) {
  const auto begin = Clock::now();
  std::optional<double> first_token;
  double last_token = 0;
  engine::DecodeRequest request = job.sequence();
  request.id = RequestId{1};
  const auto sink = [&](const engine::TokenEvent& event) {
    last_token = seconds_since(begin);
    if (!first_token) first_token = last_token;
    const std::string text = job.on_token(event);
    if (json) return;
    out.write(terminal ? printable(text) : text);
    out.flush();
  };
  Status status = engine.submit(std::move(request), {}, sink);
  while (status && !job.done() && !engine.idle() && out.ok()) status = engine.step();
  if (!status) return fail(status.error().message());
  if (!job.error().empty() && !json) return fail(job.error());
  if (json && out.ok()) out.write(job.result_line());
  out.write("\n");
  if (const Status written = out.commit(); !written) return fail(written.error().message());
  std::fprintf(stderr, "%lld tokens read in %.2f s, %lld written%s\n",
               static_cast<long long>(job.prompt_tokens()), first_token.value_or(0),
               static_cast<long long>(job.written_tokens()),
               rate_text(job.written_tokens(), last_token - first_token.value_or(0)).c_str());
  return job.error().empty() ? 0 : 1;
}

void declare(CLI::App& app, Arguments& a) {
  constexpr const char* kWhat = "What to answer (exactly one)";
  a.message_option =
      app.add_option("--message", a.message, "one user message; - reads it from standard input")
          ->group(kWhat);
  a.prompt_option = app.add_option("--prompt", a.prompt,
                                   "raw prompt text, continued as it is; - reads standard input")
                        ->group(kWhat);
  a.chat_option = app.add_option("--chat", a.chat_file,
                                 "JSON file with a request of the chat API; - reads standard input")
                      ->group(kWhat);
  a.input_option =
      app.add_option("--input", a.input,
                     "file of JSON lines, each {\"id\", \"messages\" or \"prompt\", fields of the "
                     "chat API}; - reads standard input")
          ->group(kWhat);
  app.add_option("--model", a.model, "checkpoint directory (default: the demo model)");
  app.add_option("--output", a.output,
                 "file for the answers, FILE.partial until it is whole (default: standard output)");
  app.add_option("--max-tokens", a.max_tokens, "for requests that do not say")
      ->check(integer_in(1, INT32_MAX));
  app.add_option("--temperature", a.temperature, "for requests that do not say (default 0: greedy)")
      ->check(number_in(0, 2));
  app.add_option("--thinking", a.thinking,
                 "for requests that do not say (default: on; off for the demo model)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--threads", a.threads, "CPU threads (default: all usable processors)")
      ->check(integer_in(1, 1024));
  app.add_option("--max-sequences", a.max_sequences, "requests in the engine at a time")
      ->check(integer_in(1, 4096));
  app.add_option("--replay", a.replay, "how the decoder rebuilds its windows")
      ->check(CLI::IsMember({"bounded", "exact"}));
  app.add_option("--device", a.device, "cpu, cuda or cuda:N");
  app.add_flag("--json", a.json, "one result line instead of the text");
  app.footer(
      "A line of --input that cannot be answered gives {\"id\", \"line\", \"error\"}; without "
      "\"id\" "
      "it has its\nline number as id. Exit status: 0, 1 when an answer is missing, 2 for wrong "
      "usage.");
}

/// Which is asked for? Errors: none, or more than one.
Status check_usage(const Arguments& a) {
  size_t asked = 0;
  for (const CLI::Option* option :
       {a.message_option, a.prompt_option, a.chat_option, a.input_option}) {
    asked += option->count() > 0 ? 1 : 0;
  }
  if (asked != 1) {
    return make_error(Errc::invalid_argument,
                      "exactly one of --message, --prompt, --chat and --input is wanted, got " +
                          std::to_string(asked));
  }
  if (!a.source().empty() && same_file(a.source(), a.output)) {
    return make_error(Errc::invalid_argument, "--output: is the file that is read, " + a.source());
  }
  return {};
}

/// The request of everything but --input.
Result<Json> single_body(const Arguments& a) {
  std::string text = a.message_option->count() > 0 ? a.message : a.prompt;
  if (!a.source().empty()) {
    CEDAR_TRY(text, read_text(a.source()));
  }
  if (a.chat_option->count() > 0) return gateway::read_body(text);
  text = model::sanitize_utf8(text);
  if (a.prompt_option->count() > 0) return Json{{"prompt", text}};
  return Json{{"messages", Json::array({Json{{"role", "user"}, {"content", text}}})}};
}

Json default_fields(const Arguments& a) {
  Json defaults = Json::object();
  defaults["temperature"] = a.temperature;
  if (a.max_tokens > 0) defaults["max_tokens"] = a.max_tokens;
  return defaults;
}

int run_batch(const Arguments& a, engine::Engine& engine, const gateway::ModelCard& card,
              LineReader& in, OutputFile& out) {
  GenerateBatch batch(engine, card, default_fields(a), static_cast<size_t>(a.max_sequences) * 4);
  const Status status = batch.run(in, out);
  if (!status) fail(status.error().message());
  const BatchCounts& counts = batch.counts();
  std::fprintf(stderr, "%lld answers, %lld errors; %lld tokens read, %lld written\n",
               static_cast<long long>(counts.answers), static_cast<long long>(counts.errors),
               static_cast<long long>(counts.tokens_read),
               static_cast<long long>(counts.tokens_written));
  return status && counts.errors == 0 ? 0 : 1;
}

int run(const Arguments& a) {
  // What is named wrongly is known before a model is loaded, which may take minutes.
  const auto device = parse_device(a.device);
  if (!device) return wrong_usage(device.error().message());
  std::optional<LineReader> lines;
  std::optional<Json> body;
  if (a.is_batch()) {
    auto opened = LineReader::open(a.input);
    if (!opened) return fail(opened.error().message());
    lines.emplace(std::move(*opened));
  } else {
    auto read = single_body(a);
    if (!read) return fail(read.error().message());
    body = std::move(*read);
  }
  auto out = OutputFile::open(a.output);
  if (!out) return fail(out.error().message());

  const std::string directory = a.model.empty() ? demo_model_directory() : a.model;
  const int threads = a.threads > 0 ? a.threads : usable_processors();
  const auto files = load_model_files(directory, threads, *device);
  if (!files) return fail(files.error().message());
  gateway::ModelCard card = make_model_card(files->text, directory, "", 0);
  if (!a.thinking.empty()) card.default_thinking = a.thinking == "on";

  engine::EngineOptions options;
  options.device = *device;
  options.threads = threads;
  options.max_sequences = a.is_batch() ? a.max_sequences : 1;
  options.replay = a.replay == "exact" ? engine::ReplayMode::exact : engine::ReplayMode::bounded;
  options.constraints = make_constraints(files->text);
  const auto engine = engine::Engine::create(files->model, options);
  if (!engine) return fail(engine.error().message());
  if (lines) return run_batch(a, **engine, card, *lines, *out);

  auto prepared = prepare_job(std::move(*body), default_fields(a), card);
  if (!prepared) return fail(prepared.error().message());
  const bool terminal = a.output == "-" && isatty(STDOUT_FILENO) == 1;
  return run_single(**engine, GenerateJob("answer", 0, std::move(*prepared), card), *out, a.json,
                    terminal);
}

}  // namespace

int run_generate(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Answers prompts without a server.", "cedar generate");
  declare(app, arguments);
  if (const auto status = parse_options(app, argc, argv)) return *status;
  if (const Status usage = check_usage(arguments); !usage) {
    return wrong_usage(usage.error().message());
  }
  return run(arguments);
}

}  // namespace cedar::apps
