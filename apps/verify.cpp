// `cedar verify`: golden values of a checkpoint through the engine.

#include "engine/verify/verify.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/commands.h"
#include "core/thread_pool.h"
#include "engine/runtime.h"

namespace cedar::apps {
namespace {

namespace verify = engine::verify;

constexpr const char* kUsage =
    "usage: cedar verify --model DIR --golden DIR [--json FILE] [--device NAME] [--threads N]\n"
    "                    [--isa LEVEL] [--group NAME]... [--quiet]\n"
    "\n"
    "Compares the engine with recorded values: DIR of --golden has manifest.json (vectors of every "
    "kind) or\n"
    "prompts.json (answers of a trained checkpoint). Prints the worst value of every kind beside "
    "its limit,\n"
    "what was skipped and why, and `N passed, N failed` as the last line. Exit status 1 when "
    "anything failed\n"
    "or nothing was compared.\n"
    "\n"
    "  --json FILE    write all figures; - is stdout, instead of the table\n"
    "  --device NAME  cpu, cuda or cuda:N (default: cpu)\n"
    "  --threads N    worker threads (default: all usable processors)\n"
    "  --isa LEVEL    portable, avx2 or avx512_bf16 (default: the widest this processor has)\n"
    "  --group NAME   only this group of kinds; may be given several times\n"
    "  --quiet        no progress line\n";

struct Arguments {
  std::string model;
  std::string golden;
  std::string json;
  Device device;
  verify::VerifyOptions options;
  bool quiet = false;
  bool help = false;
};

Error usage_error(const std::string& text) { return make_error(Errc::invalid_argument, text); }

Result<int> parse_threads(std::string_view text) {
  int threads = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  constexpr int kMost = 1024;
  if (error != std::errc() || rest != text.data() + text.size() || threads < 1 || threads > kMost) {
    return usage_error("--threads: must be a number in [1, 1024], got '" + std::string(text) + "'");
  }
  return threads;
}

Result<kernels::CpuIsa> parse_isa(std::string_view text) {
  using kernels::CpuIsa;
  for (CpuIsa isa : {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512_bf16}) {
    if (text != kernels::to_string(isa)) continue;
    if (!kernels::cpu_supports(isa)) {
      return usage_error("--isa: this processor cannot run " + std::string(text));
    }
    return isa;
  }
  return usage_error("--isa: expected portable, avx2 or avx512_bf16, got '" + std::string(text) +
                     "'");
}

constexpr std::string_view kValueOptions[] = {"--model",   "--golden", "--json", "--device",
                                              "--threads", "--isa",    "--group"};

/// REQUIRES: `name` is one of kValueOptions.
Status set_option(Arguments& arguments, std::string_view name, std::string_view value) {
  if (name == "--model") {
    arguments.model = value;
  } else if (name == "--golden") {
    arguments.golden = value;
  } else if (name == "--json") {
    arguments.json = value;
  } else if (name == "--device") {
    CEDAR_TRY(arguments.device, parse_device(std::string(value)));
  } else if (name == "--threads") {
    CEDAR_TRY(arguments.options.threads, parse_threads(value));
  } else if (name == "--isa") {
    CEDAR_TRY(arguments.options.isa, parse_isa(value));
  } else {
    arguments.options.groups.emplace_back(value);
  }
  return {};
}

Result<Arguments> parse_arguments(int argc, char** argv) {
  Arguments arguments;
  arguments.options.threads = usable_processors();
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--help" || name == "-h") {
      arguments.help = true;
      return arguments;
    }
    if (name == "--quiet") {
      arguments.quiet = true;
      continue;
    }
    if (!name.starts_with("--"))
      return usage_error("unexpected argument '" + std::string(name) +
                         "': the checkpoint is named by --model, the golden values by --golden");
    if (std::find(std::begin(kValueOptions), std::end(kValueOptions), name) ==
        std::end(kValueOptions)) {
      return usage_error("unknown option '" + std::string(name) + "'");
    }
    if (i + 1 == argc) return usage_error(std::string(name) + ": needs a value");
    CEDAR_CHECK_OK(set_option(arguments, name, argv[++i]));
  }
  if (arguments.model.empty()) return usage_error("--model is missing");
  if (arguments.golden.empty()) return usage_error("--golden is missing");
  const std::vector<std::string> known = verify::groups();
  for (const std::string& group : arguments.options.groups) {
    if (std::find(known.begin(), known.end(), group) != known.end()) continue;
    std::string names;
    for (const std::string& name : known) names += (names.empty() ? "" : ", ") + name;
    return usage_error("--group: expected one of " + names + ", got '" + group + "'");
  }
  return arguments;
}

/// One line that is written over again and again; only on a terminal.
class Progress {
 public:
  explicit Progress(bool wanted) : on_(wanted && isatty(STDERR_FILENO) != 0) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& text) {
    if (on_) std::fprintf(stderr, "\r\033[K%s", text.c_str());
  }
  void clear() { show({}); }

 private:
  bool on_;
};

Result<verify::Report> run(const Arguments& arguments) {
  Progress progress(!arguments.quiet);
  engine::EngineOptions loading;
  loading.device = arguments.device;
  loading.threads = arguments.options.threads;
  engine::Runtime runtime(loading);
  CEDAR_TRY(auto model,
            engine::load_model(arguments.model, model::Role::all, runtime.context(),
                               [&](int64_t done, int64_t total) {
                                 const auto percent = total == 0 ? 100 : done * 100 / total;
                                 progress.show("loading " + std::to_string(percent) + " %");
                                 return true;
                               }));
  verify::VerifyOptions options = arguments.options;
  options.progress = [&](const std::string& group, const std::string& what) {
    progress.show(group + ": " + what);
  };
  return verify::verify(std::move(model), arguments.model, arguments.golden, options);
}

Status write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return make_error(Errc::io_error, "--json: cannot write " + path);
  return {};
}

int fail(const Error& error) {
  std::fprintf(stderr, "cedar verify: %s\n", error.message().c_str());
  return 1;
}

}  // namespace

int run_verify(int argc, char** argv) {
  const auto arguments = parse_arguments(argc, argv);
  if (!arguments) {
    // What is wrong comes last, where it is read.
    std::fprintf(stderr, "%s\ncedar verify: %s\n", kUsage, arguments.error().context.c_str());
    return 2;
  }
  if (arguments->help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  const auto report = run(*arguments);
  if (!report) return fail(report.error());
  const bool json_only = arguments->json == "-";
  if (!arguments->json.empty() && !json_only) {
    if (Status written = write_text(arguments->json, report->json()); !written) {
      return fail(written.error());
    }
  }
  std::fputs((json_only ? report->json() : report->text()).c_str(), stdout);
  return report->failed() == 0 && report->passed() > 0 ? 0 : 1;
}

}  // namespace cedar::apps
