// `cedar bench WHAT`: the measurements live in bench/, one program each.

#include <cstdio>
#include <cstring>

#include "apps/commands.h"

namespace cedar::apps {
namespace {

struct Entry {
  const char* name;
  const char* summary;
  Command run;
};

constexpr Entry kBenches[] = {
    {"kernels", "every operation, against the machine's ceilings", run_bench_kernels},
    {"engine", "prefill and decode of a whole model", run_bench_engine},
#ifdef CEDAR_HAS_CLUSTER
    {"serve", "load on the gateway: latency, loss, memory, slow readers", run_bench_serve},
    {"storage", "the SSD tier, against plain reads and writes", run_bench_storage},
    {"transport", "pulls between two processes, against ucx_perftest", run_bench_transport},
#endif
};

void print_usage(std::FILE* out) {
  std::fputs("usage: cedar bench WHAT [OPTIONS]\n\n", out);
  for (const Entry& entry : kBenches) std::fprintf(out, "  %-10s %s\n", entry.name, entry.summary);
}

}  // namespace

int run_bench(int argc, char** argv) {
  if (argc < 2) {
    print_usage(stderr);
    return 2;
  }
  if (std::strcmp(argv[1], "--help") == 0 || std::strcmp(argv[1], "-h") == 0) {
    print_usage(stdout);
    return 0;
  }
  for (const Entry& entry : kBenches) {
    if (std::strcmp(argv[1], entry.name) == 0) return entry.run(argc - 1, argv + 1);
  }
  std::fprintf(stderr, "cedar bench: unknown measurement '%s'\n\n", argv[1]);
  print_usage(stderr);
  return 2;
}

}  // namespace cedar::apps
