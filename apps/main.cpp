// Picks the subcommand. Everything else belongs to the file of that subcommand.

#include <cstdio>
#include <cstring>

#include "apps/commands.h"

namespace {

struct Entry {
  const char* name;
  const char* summary;
  cedar::apps::Command run;
};

constexpr Entry kCommands[] = {
#ifdef CEDAR_HAS_GATEWAY
    {"serve", "serve a model over HTTP and WebSocket, every role in one process",
     cedar::apps::run_serve},
    {"node", "one process of a cluster", cedar::apps::run_node},
    {"config", "check, show and describe files of settings", cedar::apps::run_config},
    {"cache", "look at, check and trim the SSD tier of the KV cache", cedar::apps::run_cache},
    {"chat", "terminal client over WebSocket", cedar::apps::run_chat},
#endif
    {"generate", "answer one prompt or a file of prompts, no server", cedar::apps::run_generate},
    {"inspect", "what a checkpoint holds", cedar::apps::run_inspect},
    {"bench",
     "measure kernels, a model, a running server (serve), links (transport), a disk (storage)",
     cedar::apps::run_bench},
    {"verify", "compare the engine with golden values", cedar::apps::run_verify},
};

void print_usage(std::FILE* out) {
  std::fputs("usage: cedar COMMAND [OPTIONS]\n\ncommands:\n", out);
  for (const Entry& entry : kCommands) std::fprintf(out, "  %-10s %s\n", entry.name, entry.summary);
  std::fputs("\n`cedar COMMAND --help` explains a command; `cedar --version` prints the version.\n",
             out);
}

int run(int argc, char** argv) {
  if (argc < 2) {
    print_usage(stderr);
    return 2;
  }
  const char* name = argv[1];
  if (std::strcmp(name, "--help") == 0 || std::strcmp(name, "-h") == 0) {
    print_usage(stdout);
    return 0;
  }
  if (std::strcmp(name, "--version") == 0) {
    std::puts("cedar " CEDAR_VERSION);
    return 0;
  }
  for (const Entry& entry : kCommands) {
    if (std::strcmp(name, entry.name) == 0) return entry.run(argc - 1, argv + 1);
  }
  std::fprintf(stderr, "cedar: unknown command '%s'\n\n", name);
  print_usage(stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const int status = run(argc, argv);
  // What could not be written is no success, whatever a subcommand thinks (a full disk, for one).
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || status != 0) return status;
  std::fputs("cedar: cannot write standard output\n", stderr);
  return 1;
}
