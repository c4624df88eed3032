#include "apps/model_setup.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <utility>

#include "core/text_file.h"
#include "core/thread_pool.h"
#include "kernels/kernel_context.h"
#include "model/model_config.h"

namespace cedar::apps {
namespace {

namespace fs = std::filesystem;

class ProgressBar {
 public:
  explicit ProgressBar(std::string what)
      : what_(std::move(what)), shown_(isatty(STDERR_FILENO) == 1) {}
  ~ProgressBar() {
    if (shown_ && last_percent_ >= 0) std::fputs("\r\033[K", stderr);
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(int64_t done, int64_t total) {
    if (!shown_ || total <= 0) return;
    const int percent =
        static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
    if (percent == last_percent_) return;
    last_percent_ = percent;
    constexpr int kWidth = 30;
    const int filled = percent * kWidth / 100;
    const std::string bar = std::string(static_cast<size_t>(filled), '#') +
                            std::string(static_cast<size_t>(kWidth - filled), '.');
    std::fprintf(stderr, "\rloading %s [%s] %3d %% of %.1f MB", what_.c_str(), bar.c_str(), percent,
                 static_cast<double>(total) / 1e6);
    std::fflush(stderr);
  }

 private:
  std::string what_;
  bool shown_;
  int last_percent_ = -1;
};

std::string directory_name(const std::string& directory) {
  std::error_code error;
  const fs::path path = fs::weakly_canonical(directory, error);
  const std::string name = (error ? fs::path(directory) : path).filename().string();
  return name.empty() ? std::string("model") : name;
}

}  // namespace

std::string demo_model_directory() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    const fs::path installed = program.parent_path().parent_path() / "share" / "cedar" / "demo";
    if (fs::exists(installed / "config.json", error)) return installed.string();
  }
  return CEDAR_DEMO_MODEL_DIR;
}

bool is_demo_model(const std::string& directory) {
  const auto config = read_text_file(directory + "/config.json");
  const auto demo = read_text_file(demo_model_directory() + "/config.json");
  return config && demo && *config == *demo;
}

Result<ModelText> load_model_text(const std::string& directory) {
  ModelText text;
  // First, because it says most plainly what is wrong with a directory that holds no model.
  CEDAR_TRY(text.config, model::load_model_config(directory));
  CEDAR_TRY(text.tokenizer,
            model::Tokenizer::load((fs::path(directory) / "tokenizer.json").string()));
  if (text.tokenizer->size() > text.config.vocab_size) {
    return make_error(Errc::invalid_checkpoint, directory + ": the tokenizer has " +
                                                    std::to_string(text.tokenizer->size()) +
                                                    " ids, the model a vocabulary of " +
                                                    std::to_string(text.config.vocab_size));
  }
  return text;
}

Result<ModelFiles> load_model_files(const std::string& directory, int threads, Device device,
                                    const std::function<bool()>& stop, model::Role role,
                                    std::optional<model::LayerRange> part) {
  ModelFiles files;
  CEDAR_TRY(files.text, load_model_text(directory));
  ThreadPool pool(threads);
  Arena arena(device);
  kernels::KernelContext context;
  context.device = device;
  context.pool = &pool;
  context.arena = &arena;
  ProgressBar bar(directory_name(directory));
  CEDAR_TRY(files.model, engine::load_model(
                             directory, role, context,
                             [&](int64_t done, int64_t total) {
                               bar.show(done, total);
                               return !stop || !stop();
                             },
                             part));
  return files;
}

Result<EngramFiles> load_engram_tables(const std::string& directory,
                                       const model::ModelConfig& config, engine::EngramShard shard,
                                       bool resident, const std::function<bool()>& stop) {
  if (config.engram_layer_ids.empty()) {
    return make_error(Errc::invalid_argument, directory + ": the model has no Engram tables");
  }
  CEDAR_TRY(const model::ModelPlan plan, model::make_layer_plan(config));
  const bool encoder_has_all =
      std::all_of(config.engram_layer_ids.begin(), config.engram_layer_ids.end(),
                  [&](auto layer) { return layer < plan.boundary; });
  // The other half's files need not be on the machine.
  CEDAR_TRY(
      auto checkpoint,
      model::load_checkpoint(directory, encoder_has_all ? model::Role::encoder : model::Role::all));
  EngramFiles files;
  files.checkpoint = std::make_shared<const model::Checkpoint>(std::move(checkpoint));
  CEDAR_TRY(files.tables, engine::EngramTables::create(files.checkpoint, shard));
  if (!resident) return files;
  ProgressBar bar(directory_name(directory));
  CEDAR_CHECK_OK(files.tables->make_resident([&](int64_t done, int64_t total) {
    bar.show(done, total);
    return !stop || !stop();
  }));
  return files;
}

std::shared_ptr<engine::structured::Constraints> make_constraints(const ModelText& text) {
  const model::ModelConfig& config = text.config;
  return engine::structured::Constraints::create(text.tokenizer, config.vocab_size,
                                                 config.eos_token_id);
}

gateway::ModelCard make_model_card(const ModelText& text, const std::string& directory,
                                   const std::string& name, int64_t max_context_tokens) {
  const model::ModelConfig& config = text.config;
  gateway::ModelCard card;
  card.name = name.empty() ? directory_name(directory) : name;
  card.tokenizer = text.tokenizer;
  card.vocab_size = config.vocab_size;
  card.context_tokens =
      max_context_tokens > 0 ? max_context_tokens : config.max_position_embeddings;
  card.default_thinking = !is_demo_model(directory);
  card.eos = config.eos_token_id;
  card.created = static_cast<int64_t>(std::time(nullptr));
  card.fingerprint = "fp-cedar-" CEDAR_VERSION;
  return card;
}

}  // namespace cedar::apps
