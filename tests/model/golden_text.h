#pragma once
// Golden files of the text side.

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/tokenizer.h"

namespace cedar::model {

inline std::string golden_path(const std::string& name) {
  return std::string(CEDAR_SOURCE_DIR) + "/tests/golden/" + name;
}
inline std::string release_tokenizer_path() {
  return golden_path("release-tokenizer/tokenizer.json");
}
inline std::string mini_tokenizer_path() { return golden_path("mini/tokenizer.json"); }
inline std::string demo_tokenizer_path() {
  return std::string(CEDAR_SOURCE_DIR) + "/config/demo/tokenizer.json";
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// One document per line; ordered, because prompts show the order of keys.
inline std::vector<nlohmann::ordered_json> read_json_lines(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::vector<nlohmann::ordered_json> lines;
  for (std::string line; std::getline(file, line);)
    lines.push_back(nlohmann::ordered_json::parse(line));
  return lines;
}

inline std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  auto tokenizer = Tokenizer::load(path);
  if (!tokenizer) {
    ADD_FAILURE() << tokenizer.error().message();
    return nullptr;
  }
  return *tokenizer;
}

}  // namespace cedar::model
