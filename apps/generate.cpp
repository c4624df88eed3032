// `cedar generate`: one prompt to the terminal, or a file of prompts to a file of answers. No actors.

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "apps/commands.h"
#include "apps/generate_job.h"
#include "apps/model_setup.h"
#include "core/thread_pool.h"
#include "engine/engine.h"

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
};

int fail(const std::string& message) {
  std::fprintf(stderr, "cedar generate: %s\n", message.c_str());
  return 1;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// "-" is standard input.
Result<std::string> read_text(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_error(Errc::io_error, "cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

/// One request at a time; the answer's text goes to stdout as it comes.
class Single {
 public:
  Single(engine::Engine& engine, bool json) : engine_(engine), json_(json) {}

  int run(GenerateJob job) {
    const auto begin = Clock::now();
    double first_token = 0;
    engine::DecodeRequest request = job.sequence();
    request.id = RequestId{1};
    const auto sink = [&](const engine::TokenEvent& event) {
      if (first_token == 0) first_token = seconds_since(begin);
      const std::string text = job.on_token(event);
      if (!json_) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      }
    };
    Status status = engine_.submit(std::move(request), {}, sink);
    while (status && !job.done() && !engine_.idle()) status = engine_.step();
    if (!status) return fail(status.error().message());
    if (!job.error().empty() && !json_) return fail(job.error());
    std::puts(json_ ? job.result_line().c_str() : "");
    const double total = seconds_since(begin);
    std::fprintf(
        stderr, "%lld tokens read in %.2f s, %lld written, %.1f tokens/s\n",
        static_cast<long long>(job.prompt_tokens()), first_token,
        static_cast<long long>(job.written_tokens()),
        static_cast<double>(job.written_tokens() - 1) / std::max(total - first_token, 1e-9));
    return job.error().empty() ? 0 : 1;
  }

 private:
  engine::Engine& engine_;
  bool json_;
};

/// A file of requests, many at a time; results in the order of the input.
class Batch {
 public:
  Batch(engine::Engine& engine, const gateway::ModelCard& card, Json defaults, size_t window)
      : engine_(engine), card_(card), defaults_(std::move(defaults)), window_(window) {}

  int run(std::istream& in, std::ostream& out) {
    std::string line;
    while (std::getline(in, line)) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      submit(line);
      while (jobs_.size() - finished_ >= window_ && step()) write_ready(out);
    }
    while (finished_ < jobs_.size() && step()) write_ready(out);
    for (auto& [number, entry] : jobs_) {
      if (!entry.job) continue;  // ended
      entry.job->fail(broken_);
      end(entry, entry.job->result_line(), true);
    }
    write_ready(out);
    out.flush();
    if (!out) return fail("cannot write the output");
    if (!broken_.empty()) fail(broken_);
    std::fprintf(stderr, "%lld answers, %lld errors; %lld tokens read, %lld written\n",
                 static_cast<long long>(lines_ - errors_), static_cast<long long>(errors_),
                 static_cast<long long>(read_), static_cast<long long>(written_));
    return errors_ == 0 ? 0 : 1;
  }

 private:
  /// Waits for its turn to be written; `result` is set when it has ended.
  struct Entry {
    std::unique_ptr<GenerateJob> job;
    std::string result;
  };

  void submit(const std::string& line) {
    const uint64_t number = ++lines_;
    Json id = number;
    Entry& entry = jobs_[number];
    const auto body = gateway::read_body(line);
    if (body && body->contains("id")) id = body->at("id");
    auto prepared = body ? prepare_job(*body, defaults_, card_)
                         : Result<gateway::PreparedRequest>(body.error());
    if (!prepared) return end(entry, error_line(id, prepared.error().message()), true);
    entry.job = std::make_unique<GenerateJob>(std::move(id), std::move(*prepared), card_);
    engine::DecodeRequest request = entry.job->sequence();
    request.id = RequestId{number};
    const Status status = engine_.submit(std::move(request), {}, [this, &entry](const auto& event) {
      entry.job->on_token(event);
      if (entry.job->done()) ended_.push_back(event.id);
    });
    if (!status) end(entry, error_line(Json(number), status.error().message()), true);
  }

  /// False when the engine failed, which ends every request.
  bool step() {
    const Status status = engine_.step();
    if (!status) {
      broken_ = status.error().message();
      return false;
    }
    for (const RequestId id : std::exchange(ended_, {})) {
      const auto found = jobs_.find(id.value);
      if (found == jobs_.end() || !found->second.job) continue;
      Entry& entry = found->second;
      if (entry.job->stopped_early()) engine_.cancel(id);
      read_ += entry.job->prompt_tokens();
      written_ += entry.job->written_tokens();
      const bool failed = !entry.job->error().empty();
      end(entry, entry.job->result_line(), failed);
    }
    return true;
  }

  void end(Entry& entry, std::string result, bool failed) {
    entry.result = std::move(result);
    entry.job.reset();
    ++finished_;
    errors_ += failed ? 1 : 0;
  }

  void write_ready(std::ostream& out) {
    while (!jobs_.empty() && !jobs_.begin()->second.result.empty()) {
      out << jobs_.begin()->second.result << '\n';
      jobs_.erase(jobs_.begin());
      --finished_;
    }
    out.flush();
  }

  engine::Engine& engine_;
  const gateway::ModelCard& card_;
  Json defaults_;
  size_t window_;  // requests handed to the engine at a time
  std::map<uint64_t, Entry> jobs_;
  std::vector<RequestId> ended_;
  size_t finished_ = 0;  // of jobs_
  uint64_t lines_ = 0;
  uint64_t errors_ = 0;
  int64_t read_ = 0;
  int64_t written_ = 0;
  std::string broken_;
};

void declare(CLI::App& app, Arguments& a) {
  app.add_option("--model", a.model, "checkpoint directory (default: the demo model)");
  auto* what = app.add_option_group("what to answer (one of)");
  what->add_option("--message", a.message, "one user message; - reads it from standard input");
  what->add_option("--prompt", a.prompt,
                   "raw prompt text, continued as it is; - reads standard input");
  what->add_option("--chat", a.chat_file, "JSON file with a request of the chat API");
  what->add_option("--input", a.input,
                   "JSON lines: {\"id\", \"messages\" or \"prompt\", fields of the chat API}");
  what->require_option(1);
  app.add_option("--output", a.output,
                 "where the answers to --input go (default: standard output)");
  app.add_option("--max-tokens", a.max_tokens, "for requests that do not say")
      ->check(CLI::PositiveNumber);
  app.add_option("--temperature", a.temperature,
                 "for requests that do not say (default 0: greedy)");
  app.add_option("--thinking", a.thinking,
                 "for requests that do not say (default: on; off for the demo model)")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--threads", a.threads, "CPU threads (default: all usable processors)")
      ->check(CLI::Range(1, 1024));
  app.add_option("--max-sequences", a.max_sequences, "requests in the engine at a time")
      ->check(CLI::Range(1, 4096));
  app.add_option("--replay", a.replay, "how the decoder rebuilds its windows")
      ->check(CLI::IsMember({"bounded", "exact"}));
  app.add_option("--device", a.device, "cpu, cuda or cuda:N");
  app.add_flag("--json", a.json, "one result line instead of the text");
}

Result<Json> single_body(const Arguments& a) {
  if (!a.chat_file.empty()) {
    CEDAR_TRY(const std::string text, read_text(a.chat_file));
    return gateway::read_body(text);
  }
  const bool chat = !a.message.empty();
  std::string text = chat ? a.message : a.prompt;
  if (text == "-") {
    CEDAR_TRY(text, read_text("-"));
  }
  text = model::sanitize_utf8(text);
  if (!chat) return Json{{"prompt", text}};
  return Json{{"messages", Json::array({Json{{"role", "user"}, {"content", text}}})}};
}

Json default_fields(const Arguments& a) {
  Json defaults = Json::object();
  defaults["temperature"] = a.temperature;
  if (a.max_tokens > 0) defaults["max_tokens"] = a.max_tokens;
  return defaults;
}

int run_batch(const Arguments& a, engine::Engine& engine, const gateway::ModelCard& card) {
  std::ifstream file;
  if (a.input != "-") {
    file.open(a.input, std::ios::binary);
    if (!file) return fail("cannot read " + a.input);
  }
  std::ofstream out;
  if (a.output != "-") {
    out.open(a.output, std::ios::binary | std::ios::trunc);
    if (!out) return fail("cannot write " + a.output);
  }
  Batch batch(engine, card, default_fields(a), static_cast<size_t>(a.max_sequences) * 4);
  return batch.run(a.input == "-" ? std::cin : file, a.output == "-" ? std::cout : out);
}

int run(const Arguments& a) {
  const std::string directory = a.model.empty() ? demo_model_directory() : a.model;
  const int threads = a.threads > 0 ? a.threads : usable_processors();
  const auto device = parse_device(a.device);
  if (!device) return fail(device.error().message());
  const auto files = load_model_files(directory, threads, *device);
  if (!files) return fail(files.error().message());
  gateway::ModelCard card = make_model_card(*files, directory, "", 0);
  if (!a.thinking.empty()) card.default_thinking = a.thinking == "on";

  engine::EngineOptions options;
  options.device = *device;
  options.threads = threads;
  options.max_sequences = a.input.empty() ? 1 : a.max_sequences;
  options.replay = a.replay == "exact" ? engine::ReplayMode::exact : engine::ReplayMode::bounded;
  const auto engine = engine::Engine::create(files->model, options);
  if (!engine) return fail(engine.error().message());
  if (!a.input.empty()) return run_batch(a, **engine, card);

  auto body = single_body(a);
  if (!body) return fail(body.error().message());
  auto prepared = prepare_job(std::move(*body), default_fields(a), card);
  if (!prepared) return fail(prepared.error().message());
  return Single(**engine, a.json).run(GenerateJob("answer", std::move(*prepared), card));
}

}  // namespace

int run_generate(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Answers prompts without a server.", "cedar generate");
  declare(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    return status == 0 ? 0 : 2;
  }
  return run(arguments);
}

}  // namespace cedar::apps
