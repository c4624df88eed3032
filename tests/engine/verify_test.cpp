// Verification of the mini checkpoint against what the release's reference computed, and the proof that it would see
// a wrong engine: each mutation breaks one rule of the model, and the stage tests must notice (whole runs hide it).

#include "engine/verify/verify.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/support/test_model.h"

namespace cedar::engine::verify {
namespace {

using testing::golden_path;
using testing::mini_path;

Report run(std::shared_ptr<const LoadedModel> model, std::vector<std::string> groups) {
  VerifyOptions options;
  options.groups = std::move(groups);
  auto report = verify(std::move(model), mini_path(), golden_path(""), options);
  EXPECT_TRUE(report.has_value()) << report.error().message();
  return report ? std::move(*report) : Report();
}

TEST(Verify, TheMiniCheckpointEqualsTheReference) {
  const Report report = run(testing::mini_model(), {});
  EXPECT_EQ(report.failed(), 0) << report.text();
  EXPECT_GT(report.passed(), 1000);
  // Kinds that would be missing if a group had quietly compared nothing.
  for (const char* kind : {"units.fp8_gemm", "stage.attention", "stage.ffn", "stage.topk",
                           "stage.candidates", "stage.mhc_out", "selection.hash_ids",
                           "dspark.run_draft_ids", "decode.logits", "consistency.bits"}) {
    const KindResult* result = report.find(kind);
    ASSERT_NE(result, nullptr) << kind;
    EXPECT_GT(result->passed, 0) << kind;
  }
}

TEST(Verify, TheDemoCheckpointAnswersAsTheReference) {
  const auto report = verify(testing::demo_model(), testing::demo_path(), golden_path("demo"), {});
  ASSERT_TRUE(report.has_value()) << report.error().message();
  EXPECT_EQ(report->failed(), 0) << report->text();
  const KindResult* greedy = report->find("prompts.greedy_ids");
  ASSERT_NE(greedy, nullptr);
  EXPECT_EQ(greedy->passed, 20);
  // The thirteen lookups and four of the others have exact texts; the rest is babble with gaps near zero.
  EXPECT_GE(report->find("prompts.text")->passed, 17);
}

TEST(Verify, AFolderWithoutGoldenValuesIsAnError) {
  const auto report = verify(testing::mini_model(), mini_path(), golden_path("chat"), {});
  ASSERT_FALSE(report.has_value());
}

TEST(Verify, AnUnknownGroupIsRefusedByName) {
  VerifyOptions options;
  options.groups = {"nothing"};
  const auto report = verify(testing::mini_model(), mini_path(), golden_path(""), options);
  ASSERT_FALSE(report.has_value());
  EXPECT_NE(report.error().context.find("nothing"), std::string::npos);
}

struct Mutation {
  const char* name;
  std::function<void(LoadedModel&)> apply;
  const char* group;
  const char* kind;  // must fail
};

class Mutations : public ::testing::TestWithParam<Mutation> {};

TEST_P(Mutations, AreSeen) {
  // The loader made this object mutable; nobody else holds it.
  auto broken = std::const_pointer_cast<LoadedModel>(testing::load_for_test(mini_path()));
  ASSERT_NE(broken, nullptr);
  GetParam().apply(*broken);
  const Report report = run(broken, {GetParam().group});
  const KindResult* result = report.find(GetParam().kind);
  ASSERT_NE(result, nullptr) << report.text();
  EXPECT_GT(result->failed, 0) << report.text();
}

model::LayerPlan& layer(LoadedModel& m, size_t id) { return m.plan.layers.at(id); }

INSTANTIATE_TEST_SUITE_P(
    Stage, Mutations,
    ::testing::Values(
        Mutation{"WrongListOwner", [](LoadedModel& m) { layer(m, 10).index_source = 6; }, "stage",
                 "stage.attention"},
        Mutation{"WrongListOwnerInTheEncoder", [](LoadedModel& m) { layer(m, 5).index_source = 2; },
                 "stage", "stage.attention"},
        Mutation{"NoCandidatePool", [](LoadedModel& m) { layer(m, 9).uses_candidates = false; },
                 "stage", "stage.topk"},
        Mutation{"OtherCandidateBlocks", [](LoadedModel& m) { m.config.candidate_topk_blocks = 4; },
                 "stage", "stage.candidates"},
        Mutation{"OtherClamp", [](LoadedModel& m) { m.config.swiglu_limit = 10; }, "stage",
                 "stage.ffn"},
        Mutation{"OtherRouteScale", [](LoadedModel& m) { m.config.routed_scaling_factor = 1.5F; },
                 "stage", "stage.ffn"},
        Mutation{"OtherSinkhornCount", [](LoadedModel& m) { m.config.hc_sinkhorn_iters = 20; },
                 "stage", "stage.mhc_in"},
        Mutation{"OtherSinkhornEps", [](LoadedModel& m) { m.config.hc_eps = 1e-2F; }, "stage",
                 "stage.mhc_out"},
        Mutation{"OtherPadId", [](LoadedModel& m) { m.config.engram_pad_token_id = 2; },
                 "selection", "selection.hash_ids"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cedar::engine::verify
