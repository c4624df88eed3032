// `cedar bench engine`: prefill and decode rates of a whole model, beside the floor of the same machine in the
// same run: bytes a decode step must read, arithmetic a prompt row must do.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "apps/commands.h"
#include "apps/options.h"
#include "bench/kernels/ceilings.h"
#include "bench/kernels/cuda_measure.h"
#include "bench/support/report.h"
#include "core/units.h"
#include "engine/engine.h"
#include "engine/layer_launches.h"
#include "engine/runtime.h"
#include "engine/step_bytes.h"

namespace cedar::bench {
namespace {

using WallClock = std::chrono::steady_clock;

double seconds_since(WallClock::time_point begin) {
  return std::chrono::duration<double>(WallClock::now() - begin).count();
}

struct Options {
  std::string model = CEDAR_DEMO_MODEL_DIR;
  std::vector<int> threads{1, 2};
  std::vector<int64_t> prompts{1024, 4096};
  std::vector<int32_t> batches{1, 8};
  int64_t new_tokens = 64;
  bool one_prompt = false;   // read once, for all sequences
  int64_t chunk_tokens = 0;  // of a prefill step; 0: what the engine does by itself
  Device device;
  std::string json_path;
};

/// Repeated reads of a buffer as large as a step's bytes: the ceiling when a model fits the cache.
double resident_read_rate(ThreadPool& pool, int64_t bytes) {
  std::vector<uint64_t> data(static_cast<size_t>(bytes / 8) + 64, 1);
  std::atomic<uint64_t> sink{0};
  const auto count = static_cast<int64_t>(data.size()) / 64 * 64;
  double best = 0;
  for (int repeat = 0; repeat < 30; ++repeat) {
    const auto begin = WallClock::now();
    pool.parallel_for(count, count / pool.threads() / 64 * 64 + 64, [&](int64_t from, int64_t to) {
      uint64_t lanes[64] = {};
      for (int64_t i = from; i + 64 <= to; i += 64) {
        for (int64_t k = 0; k < 64; ++k) lanes[k] ^= data[static_cast<size_t>(i + k)];
      }
      uint64_t sum = 0;
      for (uint64_t lane : lanes) sum ^= lane;
      sink.fetch_xor(sum, std::memory_order_relaxed);
    });
    best = std::max(best, static_cast<double>(count * 8) / seconds_since(begin));
  }
  return best;
}

std::vector<TokenId> random_prompt(const engine::LoadedModel& model, int64_t length,
                                   uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens{model.config.bos_token_id};
  while (static_cast<int64_t>(tokens.size()) < length) {
    tokens.push_back(static_cast<TokenId>(3 + random() % (model.config.vocab_size / 2)));
  }
  return tokens;
}

Result<engine::Handoff> copy_of(const engine::Handoff& from) {
  engine::Handoff to;
  to.length = from.length;
  to.window_rows = from.window_rows;
  to.boundary_rows = from.boundary_rows;
  const std::pair<const Buffer*, Buffer*> parts[] = {{&from.windows, &to.windows},
                                                     {&from.pending, &to.pending},
                                                     {&from.boundary_x, &to.boundary_x},
                                                     {&from.boundary_pre, &to.boundary_pre}};
  for (const auto& [source, copy] : parts) {
    CEDAR_TRY(*copy, Buffer::allocate(Device{}, source->bytes()));
    if (source->bytes() > 0) {
      std::memcpy(copy->data(), source->data(), static_cast<size_t>(source->bytes()));
    }
  }
  return to;
}

struct Rates {
  double prefill_s = 0;  // until the last prompt row, all sequences
  double first_token_s = 0;
  std::vector<double> step_s;  // decode steps with every sequence in the batch
  std::vector<TokenId> first;  // the first sequence's tokens: the same in every batch
};

Result<Rates> run_once(std::shared_ptr<const engine::LoadedModel> model, const Options& options,
                       int threads, int64_t prompt, int32_t batch) {
  engine::EngineOptions settings;
  settings.device = options.device;
  settings.threads = threads;
  if (options.chunk_tokens > 0) settings.prefill_chunk_tokens = options.chunk_tokens;
  settings.max_sequences = batch;
  const int64_t blocks = ceil_div(prompt + options.new_tokens, model->layout.block_tokens) + 1;
  const int32_t prompts = options.one_prompt ? 1 : batch;
  const auto engram = engine::local_engram_source(model);
  settings.kv_pool_blocks = prompts * blocks;
  CEDAR_TRY(auto prefill, engine::PrefillEngine::create(model, engram, settings));
  settings.kv_pool_blocks = batch * blocks;
  CEDAR_TRY(auto decode, engine::DecodeEngine::create(model, engram, settings));
  const auto begin = WallClock::now();
  for (int32_t i = 0; i < batch; ++i) {
    engine::DecodeRequest request;
    request.id = RequestId(static_cast<uint64_t>(i));
    request.prompt =
        random_prompt(*model, prompt, static_cast<uint32_t>(options.one_prompt ? 1 : i + 1));
    request.max_new_tokens = options.new_tokens;
    // Sequences with one prompt choose tokens, and with them experts, of their own.
    request.sampling.temperature = options.one_prompt ? 1 : 0;
    request.sampling.seed = static_cast<uint64_t>(i + 1);
    request.ignore_eos = true;
    if (i < prompts) CEDAR_CHECK_OK(prefill->submit({request.id, request.prompt, {}}));
    CEDAR_CHECK_OK(decode->reserve(std::move(request)));
  }
  Rates rates;
  while (!prefill->idle()) {
    CEDAR_TRY(const auto events, prefill->step());
    for (const engine::PrefillEvent& event : events) {
      if (!event.finished) continue;
      rates.prefill_s = seconds_since(begin);
      CEDAR_TRY(engine::Handoff handoff, prefill->take_handoff(event.id));
      // Each sequence has blocks of its own, whoever else has the same.
      for (int32_t i = 0; i < (options.one_prompt ? batch : 1); ++i) {
        const RequestId id = options.one_prompt ? RequestId(static_cast<uint64_t>(i)) : event.id;
        for (int64_t b = 0; b < event.blocks_ready; ++b) {
          CEDAR_CHECK_OK(decode->import_block(id, b, prefill->block(event.id, b)));
        }
        CEDAR_TRY(engine::Handoff copy, copy_of(handoff));
        CEDAR_CHECK_OK(decode->start(id, std::move(copy)));
      }
      prefill->release(event.id);
    }
  }
  if (!options.one_prompt) rates.prefill_s = seconds_since(begin);
  while (!decode->idle()) {
    CEDAR_TRY(const auto events, decode->step());
    for (const engine::TokenEvent& event : events) {
      if (event.error) return *event.error;
      if (event.id == RequestId(0)) rates.first.push_back(event.token.token);
    }
    if (rates.first_token_s == 0 && !events.empty()) rates.first_token_s = seconds_since(begin);
    const engine::StepStats stats = decode->last_step();
    if (stats.decode_rows == batch && stats.replay_rows == 0) rates.step_s.push_back(stats.seconds);
  }
  std::sort(rates.step_s.begin(), rates.step_s.end());
  return rates;
}

/// Launches of the first layer that reads another's top-k list, in decode and in a prompt.
Status report_launches(const std::shared_ptr<const engine::LoadedModel>& model,
                       const engine::EngineOptions& settings, nlohmann::ordered_json& report) {
  for (const model::LayerPlan& plan : model->plan.layers) {
    if (plan.mode != model::LayerMode::reuse || plan.has_engram) continue;
    nlohmann::ordered_json entry;
    entry["device"] = to_string(settings.device);
    for (const int64_t rows : {1, 64, 4096}) {
      CEDAR_TRY(const int64_t launches,
                engine::count_layer_launches(model, settings, plan.id, rows, rows < 4096));
      std::printf("layer %d (reuse), %s of %ld rows: %ld launches\n", static_cast<int>(plan.id),
                  rows < 4096 ? "decode" : "prompt", static_cast<long>(rows),
                  static_cast<long>(launches));
      entry["reuse_layer_launches_" + std::to_string(rows) + "_rows"] = launches;
    }
    report.push_back(std::move(entry));
    return {};
  }
  return {};
}

Status run(const Options& options) {
  CEDAR_TRY(ReportFile file, ReportFile::open(options.json_path));
  const bool cuda = options.device.kind == DeviceKind::cuda;
  engine::EngineOptions settings;
  settings.device = options.device;
  settings.threads = usable_processors();
  engine::Runtime loading{settings};
  const auto load_begin = WallClock::now();
  CEDAR_TRY(const auto model,
            engine::load_model(options.model, model::Role::all, loading.context()));
  std::printf("loaded in %.1f s\n", seconds_since(load_begin));
  nlohmann::ordered_json report = nlohmann::json::array();
  if (cuda) CEDAR_CHECK_OK(report_launches(model, settings, report));
  std::printf("%7s %7s %6s %12s %10s %12s %12s %9s %9s %9s\n", "threads", "prompt", "batch",
              "prefill t/s", cuda ? "of bf16" : "of f32", "decode t/s", "step ms", "MB/step",
              "of read", "of cache");
  for (int threads : options.threads) {
    ThreadPool pool(threads);
    Ceilings ceilings;
    if (cuda) {
      CEDAR_TRY(ceilings, measure_cuda_ceilings(loading.context()));
    } else {
      ceilings = measure_ceilings(pool, kernels::best_cpu_isa(), Clock::wall);
    }
    const double flop_ceiling = cuda ? ceilings.bf16_flop_per_s : ceilings.f32_flop_per_s;
    for (int64_t prompt : options.prompts) {
      std::vector<TokenId> first;
      for (int32_t batch : options.batches) {
        CEDAR_TRY(const Rates rates, run_once(model, options, threads, prompt, batch));
        if (rates.step_s.empty()) {
          return make_error(Errc::invalid_argument, "--new-tokens: too few to time a full batch");
        }
        if (first.empty()) first = rates.first;
        if (first != rates.first) {
          return make_error(Errc::internal, "the first sequence's tokens changed with the batch");
        }
        const double step = rates.step_s[rates.step_s.size() / 2];
        const engine::StepBytes bytes = engine::decode_step_bytes(*model, batch, prompt);
        const double resident =
            cuda ? ceilings.read_bytes_per_s : resident_read_rate(pool, bytes.total());
        const double rate = static_cast<double>(bytes.total()) / step;
        const double prefill_rate =
            static_cast<double>(prompt * (options.one_prompt ? 1 : batch)) / rates.prefill_s;
        const double flops = engine::prefill_row_flops(*model, prompt / 2) * prefill_rate;
        std::printf("%7d %7ld %6d %12.0f %9.0f%% %12.0f %12.3f %9.2f %8.0f%% %8.0f%%\n", threads,
                    static_cast<long>(prompt), batch, prefill_rate, 100 * flops / flop_ceiling,
                    batch / step, step * 1e3, static_cast<double>(bytes.total()) / 1e6,
                    100 * rate / ceilings.read_bytes_per_s, 100 * rate / resident);
        std::fflush(stdout);
        report.push_back({{"device", to_string(options.device)},
                          {"threads", threads},
                          {"prompt_tokens", prompt},
                          {"batch", batch},
                          {"one_prompt", options.one_prompt},
                          {"prefill_tokens_per_s", prefill_rate},
                          {"first_token_s", rates.first_token_s},
                          {"prefill_flop_per_s", flops},
                          {"decode_tokens_per_s", batch / step},
                          {"decode_step_s", step},
                          {"step_weight_bytes", bytes.weights},
                          {"step_kv_bytes", bytes.kv},
                          {"read_bytes_per_s", ceilings.read_bytes_per_s},
                          {"resident_read_bytes_per_s", resident},
                          {"f32_flop_per_s", ceilings.f32_flop_per_s},
                          {"bf16_flop_per_s", ceilings.bf16_flop_per_s}});
      }
    }
  }
  return file.write(report);
}

}  // namespace
}  // namespace cedar::bench

namespace cedar::apps {

int run_bench_engine(int argc, char** argv) {
  bench::Options options;
  std::string device = "cpu";
  CLI::App app{"Whole-model prefill and decode rates against the machine's ceilings.",
               "cedar bench engine"};
  app.add_option("--model", options.model, "checkpoint directory")->capture_default_str();
  app.add_option("--threads", options.threads, "thread counts")
      ->check(integer_in(1, 1024))
      ->delimiter(',');
  app.add_option("--prompt-tokens", options.prompts, "prompt lengths")
      ->check(integer_in(1, 1 << 24))
      ->delimiter(',');
  app.add_option("--batch", options.batches, "sequences decoded together")
      ->check(integer_in(1, 4096))
      ->delimiter(',');
  app.add_option("--new-tokens", options.new_tokens, "tokens written per sequence")
      ->check(integer_in(2, 1 << 20));
  app.add_flag("--one-prompt", options.one_prompt,
               "sequences with one prompt, read once and copied to each; they sample their tokens");
  app.add_option("--chunk-tokens", options.chunk_tokens, "rows of a prefill step")
      ->check(integer_in(1, 1 << 20));
  app.add_option("--device", device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--json", options.json_path, "write the figures to this file");
  if (const auto status = apps::parse_options(app, argc, argv)) return *status;
  const auto parsed = parse_device(device);
  if (!parsed) {
    std::fprintf(stderr, "cedar bench engine: --device: %s\n", parsed.error().message().c_str());
    return 2;
  }
  options.device = *parsed;
  if (const Status status = bench::run(options); !status) {
    std::fprintf(stderr, "cedar bench engine: %s\n", status.error().message().c_str());
    return 1;
  }
  return 0;
}

}  // namespace cedar::apps
