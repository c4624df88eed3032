// `cedar bench kernels`: verifies every operation, then times it against ceilings measured in the same run.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "bench/kernels/cases.h"
#include "bench/kernels/ceilings.h"
#include "bench/kernels/cuda_measure.h"
#include "bench/kernels/timing.h"
#include "bench/support/report.h"
#include "core/device_memory.h"

namespace cedar::bench {

std::vector<Case> all_cases(Device device) {
  std::vector<Case> cases;
  const auto append = [&](std::vector<Case> table) {
    for (Case& c : table) cases.push_back(std::move(c));
  };
  for (const auto table : {linear_cases, quantize_cases, moe_cases}) append(table(device));
  if (device.kind != DeviceKind::cpu) return cases;
  for (const auto table : {attention_cases, selection_cases, row_cases}) append(table());
  return cases;
}

namespace {

constexpr const char* kUsage =
    "usage: cedar bench kernels [OPTIONS]\n"
    "  --device NAME       cpu (default), cuda or cuda:N\n"
    "  --threads N[,M...]  thread counts to measure with (default: 1 and all usable processors)\n"
    "  --only TEXT         cases whose \"operation shape\" contains TEXT; may be repeated\n"
    "  --isa NAME          portable, avx2 or avx512_bf16 (default: the best this processor has)\n"
    "  --min-ms N          time spent on each case (default 200)\n"
    "  --clock NAME        wall (default), or processor: what one thread runs, for a busy machine\n"
    "  --json FILE         write the results there too\n"
    "  --list              print the cases and end\n";

struct Options {
  Device device;
  std::vector<int> threads;
  std::vector<std::string> only;
  kernels::CpuIsa isa = kernels::best_cpu_isa();
  Clock clock = Clock::wall;
  double min_s = 0.2;
  std::string json_path;
  bool list = false;
  bool help = false;
};

Result<int> parse_count(const std::string& flag, const std::string& text, int most) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < 1 || value > most) {
    return make_error(Errc::invalid_argument, flag + " must be between 1 and " +
                                                  std::to_string(most) + ", got '" + text + "'");
  }
  return static_cast<int>(value);
}

Result<kernels::CpuIsa> parse_isa(const std::string& text) {
  for (const auto isa :
       {kernels::CpuIsa::portable, kernels::CpuIsa::avx2, kernels::CpuIsa::avx512_bf16}) {
    if (text != to_string(isa)) continue;
    if (!kernels::cpu_supports(isa)) {
      return make_error(Errc::unsupported, "--isa: this processor has no " + text);
    }
    return isa;
  }
  return make_error(Errc::invalid_argument,
                    "--isa must be portable, avx2 or avx512_bf16, got '" + text + "'");
}

Result<Options> parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help" || flag == "-h") {
      options.help = true;
      return options;
    }
    if (flag == "--list") {
      options.list = true;
      continue;
    }
    if (i + 1 == argc)
      return make_error(Errc::invalid_argument, "'" + flag + "' is unknown or lacks its value");
    const std::string value = argv[++i];
    if (flag == "--threads") {
      for (size_t begin = 0; begin <= value.size();) {
        const size_t end = std::min(value.find(',', begin), value.size());
        CEDAR_TRY(const int count, parse_count(flag, value.substr(begin, end - begin), 1024));
        options.threads.push_back(count);
        begin = end + 1;
      }
    } else if (flag == "--device") {
      CEDAR_TRY(options.device, parse_device(value));
    } else if (flag == "--only") {
      options.only.push_back(value);
    } else if (flag == "--isa") {
      CEDAR_TRY(options.isa, parse_isa(value));
    } else if (flag == "--min-ms") {
      CEDAR_TRY(const int ms, parse_count(flag, value, 1000000));
      options.min_s = ms / 1e3;
    } else if (flag == "--clock" && (value == "wall" || value == "processor")) {
      options.clock = value == "wall" ? Clock::wall : Clock::processor;
    } else if (flag == "--json") {
      options.json_path = value;
    } else {
      return make_error(Errc::invalid_argument, "unknown option '" + flag + " " + value + "'");
    }
  }
  if (options.threads.empty()) {
    options.threads = {1};
    if (options.device.kind == DeviceKind::cpu && options.clock == Clock::wall &&
        usable_processors() > 1)
      options.threads.push_back(usable_processors());
  }
  if (options.clock == Clock::processor && options.threads != std::vector<int>{1}) {
    return make_error(Errc::invalid_argument, "--clock processor needs --threads 1");
  }
  return options;
}

std::vector<Case> chosen_cases(const Options& options) {
  std::vector<Case> chosen;
  for (Case& c : all_cases(options.device)) {
    const std::string name = c.op + " " + c.shape;
    bool wanted = options.only.empty();
    for (const std::string& text : options.only) wanted |= name.find(text) != std::string::npos;
    if (wanted) chosen.push_back(std::move(c));
  }
  return chosen;
}

std::string processor_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

/// The least time the machine needs for a case, and what that time goes to.
struct Floor {
  double seconds = 0;
  Bound bound = Bound::memory;
};

Floor floor_of(const Ceilings& ceilings, const Prepared& prepared) {
  const Floor memory{prepared.bytes / ceilings.read_bytes_per_s, Bound::memory};
  if (prepared.bound == Bound::memory) return memory;
  const double rate =
      prepared.bound == Bound::bf16 ? ceilings.bf16_flop_per_s : ceilings.f32_flop_per_s;
  if (rate == 0) return memory;  // unknown
  const Floor arithmetic{prepared.flops / rate, prepared.bound};
  return arithmetic.seconds > memory.seconds ? arithmetic : memory;
}

const char* bound_name(Bound bound) {
  switch (bound) {
    case Bound::memory: return "memory";
    case Bound::bf16: return "bf16";
    case Bound::f32: return "f32";
  }
  return "";
}

Result<Timing> time_case(kernels::KernelContext& ctx, const Prepared& prepared,
                         const Options& options) {
  if (ctx.device.kind == DeviceKind::cuda) return time_on_cuda(ctx, options.min_s, prepared.run);
  Status failed;
  const Timing timing = time_calls(options.clock, options.min_s, [&] {
    if (Status status = prepared.run(); !status) failed = std::move(status);
  });
  CEDAR_CHECK_OK(failed);
  return timing;
}

/// Prepares, verifies, times and prints one case.
Result<nlohmann::json> run_case(kernels::KernelContext& ctx, const Case& c,
                                const Ceilings& ceilings, const Options& options) {
  CEDAR_TRY(const Prepared prepared, c.prepare(ctx));
  CEDAR_CHECK_OK(prepared.run());
  CEDAR_CHECK_OK(synchronize(ctx.device, ctx.cuda_stream));
  if (const std::string wrong = prepared.verify(); !wrong.empty()) {
    return make_error(Errc::internal, c.op + " " + c.shape + " is wrong: " + wrong);
  }
  CEDAR_TRY(const Timing timing, time_case(ctx, prepared, options));
  const Floor floor = floor_of(ceilings, prepared);
  // A GPU repeats within a few per cent: the median. A CPU that others use too does not: the best.
  const bool cuda = ctx.device.kind == DeviceKind::cuda;
  const double seconds = cuda ? timing.median_s : timing.best_s;
  const double ratio = floor.seconds / seconds;
  std::printf("%-16s %-58s %10.1f %10.1f %8.1f %8.1f  %-6s %4.0f %%\n", c.op.c_str(),
              c.shape.c_str(), timing.best_s * 1e6, timing.median_s * 1e6,
              prepared.bytes / seconds / 1e9, prepared.flops / seconds / 1e9,
              bound_name(floor.bound), ratio * 100);
  std::fflush(stdout);
  return nlohmann::json{{"op", c.op},
                        {"shape", c.shape},
                        {"best_us", timing.best_s * 1e6},
                        {"median_us", timing.median_s * 1e6},
                        {"samples", timing.samples},
                        {"bytes", prepared.bytes},
                        {"flops", prepared.flops},
                        {"bound", bound_name(floor.bound)},
                        {"ratio", ratio}};
}

Result<nlohmann::json> run_with_threads(const Options& options, const std::vector<Case>& cases,
                                        int threads) {
  ThreadPool pool(threads);
  Arena arena{options.device};
  CEDAR_TRY(const Stream stream, Stream::create(options.device));
  kernels::KernelContext ctx;
  ctx.device = options.device;
  ctx.cuda_stream = stream.handle();
  ctx.pool = &pool;
  ctx.arena = &arena;
  ctx.isa = options.isa;
  Ceilings ceilings;
  if (options.device.kind == DeviceKind::cuda) {
    CEDAR_TRY(ceilings, measure_cuda_ceilings(ctx));
    std::printf("\n%s: copy %.1f GB/s, bf16 %.0f GFLOP/s (cuBLASLt)\n",
                to_string(options.device).c_str(), ceilings.copy_bytes_per_s / 1e9,
                ceilings.bf16_flop_per_s / 1e9);
  } else {
    ceilings = measure_ceilings(pool, options.isa, options.clock);
    std::printf(
        "\n%d thread%s, %s: read %.1f GB/s, copy %.1f GB/s, bf16 %.0f GFLOP/s, f32 %.0f GFLOP/s\n",
        threads, threads == 1 ? "" : "s", std::string(to_string(options.isa)).c_str(),
        ceilings.read_bytes_per_s / 1e9, ceilings.copy_bytes_per_s / 1e9,
        ceilings.bf16_flop_per_s / 1e9, ceilings.f32_flop_per_s / 1e9);
  }
  std::printf(
      "%-16s %-58s %10s %10s %8s %8s  %s\n", "operation", "shape", "best us", "median us", "GB/s",
      "GFLOP/s",
      options.device.kind == DeviceKind::cuda ? "of ceiling (median)" : "of ceiling (best)");
  nlohmann::json results = nlohmann::json::array();
  for (const Case& c : cases) {
    CEDAR_TRY(nlohmann::json result, run_case(ctx, c, ceilings, options));
    results.push_back(std::move(result));
  }
  return nlohmann::json{{"threads", threads},
                        {"ceilings",
                         {{"read_bytes_per_s", ceilings.read_bytes_per_s},
                          {"copy_bytes_per_s", ceilings.copy_bytes_per_s},
                          {"bf16_flop_per_s", ceilings.bf16_flop_per_s},
                          {"f32_flop_per_s", ceilings.f32_flop_per_s}}},
                        {"results", std::move(results)}};
}

Status run_all(const Options& options) {
  const std::vector<Case> cases = chosen_cases(options);
  if (cases.empty())
    return make_error(Errc::invalid_argument, "--only matches no case; see --list");
  if (options.list) {
    for (const Case& c : cases) std::printf("%s %s\n", c.op.c_str(), c.shape.c_str());
    return {};
  }
  std::string machine = processor_name();
  if (options.device.kind == DeviceKind::cuda) {
    CEDAR_CHECK_OK(check_device(options.device));
    CEDAR_TRY(machine, cuda_device_name(options.device));
  }
  CEDAR_TRY(ReportFile file, ReportFile::open(options.json_path));
  const std::string date = utc_date();
  nlohmann::json report{{"benchmark", "kernels"},
                        {"machine", machine},
                        {"device", to_string(options.device)},
                        {"isa", to_string(options.isa)},
                        {"clock", options.clock == Clock::wall ? "wall" : "processor"},
                        {"date", date},
                        {"runs", nlohmann::json::array()}};
  std::printf("%s, %s\n", machine.c_str(), date.c_str());
  for (const int threads : options.threads) {
    CEDAR_TRY(nlohmann::json run, run_with_threads(options, cases, threads));
    report["runs"].push_back(std::move(run));
  }
  return file.write(report);
}

}  // namespace
}  // namespace cedar::bench

int cedar::apps::run_bench_kernels(int argc, char** argv) {
  const auto options = bench::parse_options(argc, argv);
  if (!options) {
    std::fprintf(stderr, "cedar bench kernels: %s\n%s", options.error().message().c_str(),
                 bench::kUsage);
    return 2;
  }
  if (options->help) {
    std::fputs(bench::kUsage, stdout);
    return 0;
  }
  if (const Status status = bench::run_all(*options); !status) {
    std::fprintf(stderr, "cedar bench kernels: %s\n", status.error().message().c_str());
    return status.error().code == Errc::invalid_argument ? 2 : 1;
  }
  return 0;
}
