// Verification against golden data that was changed on purpose, and engines broken where stage inputs do not reach:
// owners mixed up in single decode steps, tables, the router's image bias, the drafter.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "engine/verify/verify.h"
#include "tests/support/test_model.h"

namespace cedar::engine::verify {
namespace {

using testing::golden_path;
using testing::mini_path;
namespace fs = std::filesystem;

/// A golden folder of links to the real files, of which some are replaced. Removed at the end of the test.
class Folder {
 public:
  explicit Folder(const std::vector<std::string>& files) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = fs::temp_directory_path() /
            ("cedar_mutation_" + std::string(test->name()) + "_" + std::to_string(getpid()));
    fs::create_directories(path_);
    for (const std::string& file : files) fs::create_symlink(golden_path(file), path_ / file);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path() const { return path_.string(); }

  /// The golden file with its header's entries changed; the data behind it stays.
  void rewrite(const std::string& file, const std::function<void(nlohmann::json&)>& change) {
    std::ifstream in(golden_path(file), std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    auto header = nlohmann::json::parse(bytes.substr(sizeof length, length));
    change(header);
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const uint64_t written = text.size();
    fs::remove(path_ / file);
    std::ofstream out(path_ / file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&written), sizeof written);
    out << text << bytes.substr(sizeof length + length);
  }

 private:
  fs::path path_;
};

Report run(std::shared_ptr<const LoadedModel> model, const std::string& golden,
           std::vector<std::string> groups) {
  VerifyOptions options;
  options.groups = std::move(groups);
  auto report = verify(std::move(model), mini_path(), golden, options);
  EXPECT_TRUE(report.has_value()) << report.error().message();
  return report ? std::move(*report) : Report();
}

int64_t failed(const Report& report, const char* kind) {
  const KindResult* result = report.find(kind);
  return result == nullptr ? 0 : result->failed;
}

TEST(MutatedGolden, ExchangedOwnersShowInDecodeSteps) {
  Folder folder({"manifest.json", "selection.safetensors"});
  folder.rewrite("decode.safetensors", [](nlohmann::json& header) {
    nlohmann::json out;
    for (const auto& [name, entry] : header.items()) {
      std::string key = name;
      const auto swap = [&](const std::string& from, const std::string& to) {
        const auto at = key.find("." + from + ".");
        if (at == std::string::npos) return false;
        key.replace(at + 1, from.size(), to);
        return true;
      };
      if (!swap("released", "published")) swap("published", "released");
      out[key] = entry;
    }
    header = out;
  });
  const Report report = run(testing::mini_model(), folder.path(), {"decode"});
  EXPECT_GT(failed(report, "decode.topk"), 0) << report.text();
  EXPECT_GT(failed(report, "decode.index_scores"), 0) << report.text();
  // What a whole run hides: its logits do not show it.
  EXPECT_EQ(failed(report, "decode.logits"), 0) << report.text();
}

TEST(MutatedGolden, AnUnknownTensorIsReported) {
  Folder folder({"manifest.json"});
  folder.rewrite("units.safetensors", [](nlohmann::json& header) {
    header["something.new"] = header["e4m3_table"];
    header.erase("e4m3_table");
  });
  const Report report = run(testing::mini_model(), folder.path(), {});
  EXPECT_EQ(failed(report, "golden.unread"), 1) << report.text();
  EXPECT_NE(report.text().find("something.new"), std::string::npos);
}

TEST(MutatedGolden, AnotherShapeIsReported) {
  Folder folder({"manifest.json"});
  folder.rewrite("units.safetensors", [](nlohmann::json& header) {
    header["e4m3_table"]["shape"] = {2, 128};
  });
  const Report report = run(testing::mini_model(), folder.path(), {"units"});
  EXPECT_EQ(failed(report, "golden.shape"), 1) << report.text();
}

TEST(MutatedGolden, AbsentFilesAreListedAsSkipped) {
  Folder folder({"manifest.json"});
  const Report report = run(testing::mini_model(), folder.path(), {});
  EXPECT_EQ(report.failed(), 0) << report.text();
  for (const char* group :
       {"units", "selection", "stage", "run", "decode", "dspark", "vision", "consistency"}) {
    const auto& skipped = report.skipped();
    EXPECT_TRUE(std::any_of(skipped.begin(), skipped.end(),
                            [&](const Skipped& s) { return s.what == group; }))
        << group << " is not listed\n"
        << report.text();
  }
  const std::string last = std::to_string(report.passed()) + " passed, 0 failed\n";
  EXPECT_TRUE(report.text().ends_with(last));
}

TEST(MutatedGolden, GoldenValuesOfAnotherModelFailWithoutACrash) {
  const Report report =
      run(testing::demo_model(), golden_path(""), {"units", "selection", "stage"});
  EXPECT_GT(report.failed(), 0);
}

struct Mutation {
  const char* name;
  std::function<void(LoadedModel&)> apply;
  const char* group;
  const char* kind;  // must fail
};

class MutatedEngine : public ::testing::TestWithParam<Mutation> {};

TEST_P(MutatedEngine, IsSeen) {
  // The loader made this object mutable; nobody else holds it.
  auto broken = std::const_pointer_cast<LoadedModel>(testing::load_for_test(mini_path()));
  ASSERT_NE(broken, nullptr);
  GetParam().apply(*broken);
  const Report report = run(broken, golden_path(""), {GetParam().group});
  EXPECT_GT(failed(report, GetParam().kind), 0) << report.text();
}

INSTANTIATE_TEST_SUITE_P(
    Parts, MutatedEngine,
    ::testing::Values(
        Mutation{"WindowTheta",
                 [](LoadedModel& m) { m.inv_freq_window.buffer.as<float>()[1] *= 1.1F; }, "stage",
                 "stage.window_kv"},
        Mutation{"CompressedTheta",
                 [](LoadedModel& m) { m.inv_freq_compressed.buffer.as<float>()[1] *= 1.1F; },
                 "stage", "stage.main_kv"},
        Mutation{"YarnFactor", [](LoadedModel& m) { m.config.rope_scaling.factor = 16; }, "units",
                 "units.rope_table"},
        Mutation{"EngramMultiplier",
                 [](LoadedModel& m) { m.engram.layers.front().multipliers[1] += 2; }, "selection",
                 "selection.hash_ids"},
        Mutation{"NoImageBias",
                 [](LoadedModel& m) {
                   LayerWeights& w = *m.layers.at(2);
                   std::memcpy(w.gate_bias_image.buffer.data(), w.gate_bias.buffer.data(),
                               static_cast<size_t>(w.gate_bias.buffer.bytes()));
                 },
                 "units", "units.gate_experts"},
        Mutation{"SinkhornCount", [](LoadedModel& m) { m.config.hc_sinkhorn_iters = 3; }, "units",
                 "units.sinkhorn"},
        Mutation{"DraftNoiseToken", [](LoadedModel& m) { m.config.dspark_noise_token_id = 5; },
                 "dspark", "dspark.draft_ids"},
        Mutation{"SmallerTopk", [](LoadedModel& m) { m.config.index_topk = 29; }, "stage",
                 "golden.shape"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cedar::engine::verify
