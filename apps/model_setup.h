#pragma once
// Finding, loading and describing the model that a subcommand runs.

#include <functional>
#include <memory>
#include <string>

#include "core/result.h"
#include "engine/loaded_model.h"
#include "engine/structured/constraints.h"
#include "gateway/model_card.h"
#include "model/tokenizer.h"

namespace cedar::apps {

/// The demo model: beside the installed program (../share/cedar/demo), else in the source tree it was
/// built from.
std::string demo_model_directory();

/// The demo model knows no reasoning: requests that do not say get none.
bool is_demo_model(const std::string& directory);

struct ModelFiles {
  std::shared_ptr<const engine::LoadedModel> model;
  std::shared_ptr<const model::Tokenizer> tokenizer;
};

/// Shows progress on stderr when that is a terminal. `stop` is asked now and then. Errors: those of the readers,
/// naming the file or the directory that is missing; cancelled when `stop` says so.
Result<ModelFiles> load_model_files(const std::string& directory, int threads, Device device,
                                    const std::function<bool()>& stop = {});

/// What an engine of this model needs to constrain its output.
std::shared_ptr<engine::structured::Constraints> make_constraints(const ModelFiles& files);

/// `name`: id in the API; empty: the directory's name. `max_context_tokens`: 0 for the model's own.
gateway::ModelCard make_model_card(const ModelFiles& files, const std::string& directory,
                                   const std::string& name, int64_t max_context_tokens);

}  // namespace cedar::apps
