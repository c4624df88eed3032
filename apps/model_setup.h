#pragma once
// Finding, loading and describing the model that a subcommand runs.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/result.h"
#include "engine/engram_tables.h"
#include "engine/loaded_model.h"
#include "engine/structured/constraints.h"
#include "gateway/model_card.h"
#include "model/checkpoint.h"
#include "model/model_config.h"
#include "model/tokenizer.h"

namespace cedar::apps {

/// The demo model: beside the installed program (../share/cedar/demo), else in the source tree it was
/// built from.
std::string demo_model_directory();

/// The demo model knows no reasoning: requests that do not say get none.
bool is_demo_model(const std::string& directory);

/// What is known of a model without its weights.
struct ModelText {
  model::ModelConfig config;
  std::shared_ptr<const model::Tokenizer> tokenizer;
};
/// Errors: those of the readers, naming the file or the directory that is missing; invalid_checkpoint when the tokenizer
/// does not fit the model.
Result<ModelText> load_model_text(const std::string& directory);

struct ModelFiles {
  ModelText text;
  std::shared_ptr<const engine::LoadedModel> model;
};

/// Loads what `role` needs, or a part of its layers. Shows progress on stderr when that is a terminal. `stop` is asked now and then. Errors: those of the readers,
/// naming the file or the directory that is missing; cancelled when `stop` says so.
Result<ModelFiles> load_model_files(const std::string& directory, int threads, Device device,
                                    const std::function<bool()>& stop = {},
                                    model::Role role = model::Role::all,
                                    std::optional<model::LayerRange> part = {});

/// Maps the Engram tables of a model, or one shard of them, and with `resident` reads all of it, with a progress bar.
/// Errors: those of the readers, invalid_argument for a model without tables, out_of_memory naming need and what is
/// there; cancelled when `stop` says so.
struct EngramFiles {
  std::shared_ptr<const model::Checkpoint> checkpoint;
  std::shared_ptr<const engine::EngramTables> tables;
};
Result<EngramFiles> load_engram_tables(const std::string& directory,
                                       const model::ModelConfig& config, engine::EngramShard shard,
                                       bool resident, const std::function<bool()>& stop = {});

/// What an engine of this model needs to constrain its output.
std::shared_ptr<engine::structured::Constraints> make_constraints(const ModelText& text);

/// `name`: id in the API; empty: the directory's name. `max_context_tokens`: 0 for the model's own.
gateway::ModelCard make_model_card(const ModelText& text, const std::string& directory,
                                   const std::string& name, int64_t max_context_tokens);

}  // namespace cedar::apps
