#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_directory.h"

namespace cedar::apps {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kRoot = CEDAR_SOURCE_DIR;

struct Ran {
  int status = 0;
  std::string out;
  std::string err;
};

Ran inspect(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "inspect");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Ran ran;
  ran.status = run_inspect(static_cast<int>(argv.size()), argv.data());
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  return ran;
}

TEST(Inspect, ReleaseConfigAlone) {
  const Ran ran = inspect({kRoot + "/tests/golden/release"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  for (const char* text :
       {"40 layers, 20 encoder and 20 decoder", "113,920 bytes, 890.00 bytes per token",
        "510,286,023,000", "149,482,855,648", "298,624,579,008", "306,557,453,640", "7.9", "16.1",
        "384,006,168", "384,016,682", "6,608,908", "2,541 rows exact", "0.2533 of it",
        "1/437.2 of it", "933,232,640", "weights: no weights found"}) {
    EXPECT_THAT(ran.out, HasSubstr(text));
  }
}

TEST(Inspect, VerifiesWeights) {
  const Ran ran = inspect({kRoot + "/tests/golden/mini"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.out, AllOf(HasSubstr("106.50 bytes per token"),
                             HasSubstr("weights: 1,331 tensors, 9,629,730 bytes in 4 files"),
                             HasSubstr("verified for role all")));
}

TEST(Inspect, Json) {
  const Ran ran = inspect({"--json", "--role", "encoder", kRoot + "/tests/golden/mini"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const auto document = nlohmann::json::parse(ran.out);
  EXPECT_EQ(document["kv"]["bytes_per_token"], 106.5);
  EXPECT_EQ(document["layers"].size(), 11u);
  EXPECT_EQ(document["layers"][4]["mode"], "reindex");
  EXPECT_EQ(document["layers"][0]["kv_source"], nullptr);
  EXPECT_EQ(document["weights"]["verified"], true);
  EXPECT_EQ(document["weights"]["role"], "encoder");
  EXPECT_EQ(document["all"]["tensors"], 1331);
}

TEST(Inspect, BrokenWeightsFailAfterTheReport) {
  const test::TempDirectory directory;
  directory.write("config.json", test::read_file(kRoot + "/tests/golden/mini/config.json"));
  directory.write("model.safetensors",
                  test::safetensors_file({test::zeros("norm.weight", "BF16", {160})}));
  const Ran ran = inspect({directory.path()});
  EXPECT_EQ(ran.status, 1);
  EXPECT_THAT(ran.out, HasSubstr("106.50 bytes per token"));
  EXPECT_THAT(ran.err, AllOf(HasSubstr("missing tensors"), HasSubstr("embed.weight")));

  directory.write("model.safetensors.index.json",
                  R"({"weight_map":{"embed.weight":"gone.safetensors"}})");
  const Ran gone = inspect({directory.path()});
  EXPECT_EQ(gone.status, 1);
  EXPECT_THAT(gone.err, HasSubstr("gone.safetensors"));
}

TEST(Inspect, BadDirectoriesAndArguments) {
  const Ran absent = inspect({"/nowhere/at/all"});
  EXPECT_EQ(absent.status, 1);
  EXPECT_THAT(absent.err, HasSubstr("/nowhere/at/all: no such directory"));
  EXPECT_EQ(inspect({}).status, 2);
  EXPECT_EQ(inspect({"a", "b"}).status, 2);
  EXPECT_EQ(inspect({"a", "--role"}).status, 2);
  EXPECT_EQ(inspect({"a", "--role", "cook"}).status, 2);
  EXPECT_THAT(inspect({"a", "--verbose"}).err, AllOf(HasSubstr("--verbose"), HasSubstr("usage")));
  EXPECT_EQ(inspect({"--help"}).status, 0);
}

}  // namespace
}  // namespace cedar::apps
