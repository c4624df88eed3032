#pragma once
// The subcommands of `cedar`, one file each. main.cpp lists those this build contains.

namespace cedar::apps {

/// argv[0] is the subcommand's name. Returns the process's exit status: 0 success, 1 the work failed,
/// 2 wrong usage. Errors go to stderr, results to stdout.
using Command = int (*)(int argc, char** argv);

int run_generate(int argc, char** argv);
int run_bench(int argc, char** argv);
int run_bench_kernels(int argc, char** argv);
int run_bench_engine(int argc, char** argv);
int run_inspect(int argc, char** argv);
int run_verify(int argc, char** argv);

// Builds with CEDAR_CLUSTER only.
int run_bench_serve(int argc, char** argv);
int run_bench_transport(int argc, char** argv);
int run_bench_storage(int argc, char** argv);
int run_cache(int argc, char** argv);
int run_serve(int argc, char** argv);
int run_node(int argc, char** argv);
int run_config(int argc, char** argv);
int run_chat(int argc, char** argv);

}  // namespace cedar::apps
