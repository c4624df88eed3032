#pragma once
// The replay of golden values through the engine: `cedar verify`. Nothing here knows a particular checkpoint:
// cases come from manifest.json or prompts.json, shapes and roles from config.json, comparisons from the
// tensor names that are present.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "engine/loaded_model.h"
#include "engine/verify/report.h"
#include "kernels/kernel_context.h"

namespace cedar::engine::verify {

struct VerifyOptions {
  int threads = 1;
  kernels::CpuIsa isa = kernels::best_cpu_isa();  // REQUIRES: cpu_supports(isa)
  /// Groups to run (see groups()); empty: all. A part of them does not report unread tensors.
  std::vector<std::string> groups;
  /// Called when a group or one of its cases begins.
  std::function<void(const std::string& group, const std::string& what)> progress;
};

/// "units", "manifest", "selection" ...: a kind's name up to its first dot, in the order in which they run.
std::vector<std::string> groups();

/// Compares everything the folder holds. Failed comparisons are in the report; an error means that nothing
/// could be compared. `model_directory` supplies tokenizer.json.
/// Errors: invalid_argument (an unknown group), not_found (no golden folder), those of reading its files.
/// REQUIRES: the model was loaded with Role::all. The engines run on its device.
Result<Report> verify(std::shared_ptr<const LoadedModel> model, const std::string& model_directory,
                      const std::string& golden_directory, const VerifyOptions& options);

}  // namespace cedar::engine::verify
