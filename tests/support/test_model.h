#pragma once
// The checkpoints that engine tests run on, loaded once per test program.

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/runtime.h"

namespace cedar::testing {

inline std::string golden_path(const std::string& file) {
  return std::string(CEDAR_SOURCE_DIR) + "/tests/golden/" + file;
}
inline std::string mini_path() { return golden_path("mini"); }
inline std::string demo_path() { return std::string(CEDAR_SOURCE_DIR) + "/config/demo"; }

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return nlohmann::json::parse(file);
}

inline std::shared_ptr<const engine::LoadedModel> load_for_test(
    const std::string& directory, model::Role role = model::Role::all) {
  engine::Runtime runtime{engine::EngineOptions{}};
  auto model = engine::load_model(directory, role, runtime.context());
  if (!model) {
    ADD_FAILURE() << model.error().message();
    return nullptr;
  }
  return *model;
}

inline std::shared_ptr<const engine::LoadedModel> mini_model() {
  static const auto model = load_for_test(mini_path());
  return model;
}
inline std::shared_ptr<const engine::LoadedModel> demo_model() {
  static const auto model = load_for_test(demo_path());
  return model;
}

/// Comparison numerics: what the golden data was computed with.
inline engine::EngineOptions test_options() {
  engine::EngineOptions options;
  options.numeric.index_score = kernels::IndexScoreMode::bf16;
  options.max_sequences = 8;
  return options;
}

}  // namespace cedar::testing
