// `cedar config describe`: docs/config.md, from the list that the settings file is read by.

#include <cstdio>
#include <string_view>

#include "apps/commands.h"
#include "config/serve_config.h"

namespace cedar::apps {
namespace {

constexpr const char* kUsage =
    "usage: cedar config describe\n"
    "\n"
    "Prints every setting of `cedar serve --config FILE` with its default and what is allowed, as "
    "Markdown.\n";

}  // namespace

int run_config(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what == "describe") {
    std::fputs(config::describe_serve_config().c_str(), stdout);
    return 0;
  }
  const bool help = what == "--help" || what == "-h";
  std::fputs(kUsage, help ? stdout : stderr);
  return help ? 0 : 2;
}

}  // namespace cedar::apps
