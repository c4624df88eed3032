// `cedar inspect DIR`: what a checkpoint holds, what each role loads, what a token costs.

#include <cstdio>
#include <iostream>
#include <string_view>

#include "apps/commands.h"
#include "apps/inspect_report.h"

namespace cedar::apps {
namespace {

constexpr const char* kUsage =
    "usage: cedar inspect DIR [--role all|encoder|decoder] [--json]\n"
    "\n"
    "Prints the layer plan of DIR/config.json, bytes by role, KV bytes per token, the hand-off and "
    "the\n"
    "Engram tables. Where DIR has weights, checks every header: each tensor of the role must be "
    "there once,\n"
    "with its type and shape, and none may be left over. No weight is read.\n";

struct Arguments {
  std::string directory;
  model::Role role = model::Role::all;
  bool json = false;
  bool help = false;
};

Result<model::Role> parse_role(std::string_view text) {
  for (model::Role role : {model::Role::all, model::Role::encoder, model::Role::decoder}) {
    if (text == to_string(role)) return role;
  }
  return make_error(Errc::invalid_argument,
                    "--role: expected all, encoder or decoder, got '" + std::string(text) + "'");
}

Result<Arguments> parse_arguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      arguments.help = true;
    } else if (argument == "--json") {
      arguments.json = true;
    } else if (argument == "--role") {
      if (++i == argc) return make_error(Errc::invalid_argument, "--role: needs a value");
      CEDAR_TRY(arguments.role, parse_role(argv[i]));
    } else if (argument.substr(0, 1) == "-") {
      return make_error(Errc::invalid_argument, "unknown option '" + std::string(argument) + "'");
    } else if (!arguments.directory.empty()) {
      return make_error(Errc::invalid_argument,
                        "one directory at a time, got a second, '" + std::string(argument) + "'");
    } else {
      arguments.directory = argument;
    }
  }
  if (arguments.directory.empty() && !arguments.help) {
    return make_error(Errc::invalid_argument, "which directory?");
  }
  return arguments;
}

Result<InspectReport> make_report(const Arguments& arguments) {
  InspectReport report;
  report.directory = arguments.directory;
  CEDAR_TRY(report.config, model::load_model_config(arguments.directory));
  CEDAR_TRY(report.plan, model::make_layer_plan(report.config));
  CEDAR_TRY(report.engram, model::make_engram_layout(report.config));
  report.footprint = model::make_footprint(report.config, report.plan);
  return report;
}

/// Errors: those of load_checkpoint, except that a directory without weights is a finding, not an
/// error.
Status add_weights(const Arguments& arguments, InspectReport& report) {
  const auto loaded = model::load_checkpoint(arguments.directory, arguments.role);
  if (loaded) {
    report.weights = FoundWeights{arguments.role, static_cast<int64_t>(loaded->files.size()),
                                  loaded->tensor_count, loaded->bytes};
    return {};
  }
  if (loaded.error().code == Errc::not_found && !model::has_weights(arguments.directory)) {
    report.weights_problem = "no weights found";
    return {};
  }
  report.weights_problem = loaded.error().context;
  return loaded.error();
}

int fail(const Error& error, int status) {
  std::fprintf(stderr, "cedar inspect: %s\n", error.message().c_str());
  return status;
}

}  // namespace

int run_inspect(int argc, char** argv) {
  const auto arguments = parse_arguments(argc, argv);
  if (!arguments) {
    std::fprintf(stderr, "cedar inspect: %s\n%s", arguments.error().context.c_str(), kUsage);
    return 2;
  }
  if (arguments->help) {
    std::fputs(kUsage, stdout);
    return 0;
  }
  auto report = make_report(*arguments);
  if (!report) return fail(report.error(), 1);
  const Status weights = add_weights(*arguments, *report);
  (arguments->json ? print_json : print_text)(*report, std::cout);
  std::cout.flush();
  return weights ? 0 : fail(weights.error(), 1);
}

}  // namespace cedar::apps
