#include "config/serve_config.h"
#include "config/cluster_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/text_file.h"

namespace cedar::config {
namespace {

using testing::HasSubstr;

TEST(ServeConfig, AnEmptyFileGivesTheDefaults) {
  auto config = parse_serve_config("", "empty.toml");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->http.host, "127.0.0.1");
  EXPECT_EQ(config->http.port, 8080);
  EXPECT_EQ(config->model.thinking, "auto");
  EXPECT_TRUE(validate(*config));
}

TEST(ServeConfig, ReadsEveryKindOfValue) {
  auto config = parse_serve_config(R"(
[model]
directory = "checkpoints/demo"
aliases = ["a", "b"]
thinking = "off"
[http]
port = 0
[engine]
replay = "exact"
)",
                                   "x.toml");
  ASSERT_TRUE(config) << config.error().message();
  EXPECT_EQ(config->model.directory, "checkpoints/demo");
  EXPECT_THAT(config->model.aliases, testing::ElementsAre("a", "b"));
  EXPECT_EQ(config->model.thinking, "off");
  EXPECT_EQ(config->http.port, 0);
  EXPECT_EQ(config->engine.replay, "exact");
}

struct BadCase {
  const char* text;
  const char* complaint;
};

class BadServeConfig : public testing::TestWithParam<BadCase> {};

TEST_P(BadServeConfig, NamesTheKeyAndTheValue) {
  auto config = parse_serve_config(GetParam().text, "bad.toml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Errc::invalid_config);
  EXPECT_THAT(config.error().context, HasSubstr(GetParam().complaint));
  EXPECT_THAT(config.error().context, HasSubstr("bad.toml"));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadServeConfig,
    testing::Values(
        BadCase{"[http]\nport = 70000", "http.port must be in [0, 65535], got 70000"},
        BadCase{"[http]\nport = \"80\"", "http.port must be an integer"},
        BadCase{"[http]\nprot = 80", "http.prot is no known setting"},
        BadCase{"[htpp]\nport = 80", "htpp is no known setting"},
        BadCase{"http = 3", "http must be a table"},
        BadCase{"[model]\naliases = \"a\"", "model.aliases must be an array of strings"},
        BadCase{"[model]\naliases = [1]", "model.aliases must be an array of strings"},
        BadCase{"[model]\ndirectory = 1", "model.directory must be a string"},
        BadCase{"[model]\nthinking = \"maybe\"", "model.thinking must be one of auto, on, off"},
        BadCase{"[http]\nallowed_origins = \"*\"",
                "http.allowed_origins must be an array of strings"},
        BadCase{"[http]\nmetrics = \"no\"", "http.metrics must be one of open, key"},
        BadCase{"keys = 3", "keys must be an array of tables, [[keys]]"},
        BadCase{"keys = [3]", "keys must be an array of tables, [[keys]]"},
        BadCase{"[keys]\nname = \"a\"", "keys must be an array of tables, [[keys]]"},
        BadCase{"[[keys]]\nname = \"a\"\n[[keys]]\nnmae = \"b\"",
                "keys[1].nmae is no known setting"},
        BadCase{"[[keys]]\nname = 1", "keys[0].name must be a string"},
        BadCase{"[[keys]]\nmax_concurrent = -1",
                "keys[0].max_concurrent must be in [0, 1000000], got -1"},
        BadCase{"[model\nthinking", "bad.toml"}));

TEST(ServeConfig, ReadsAListOfKeys) {
  auto config = parse_serve_config(R"(
[[keys]]
name = "anna"
file = "anna.key"
requests_per_minute = 60
[[keys]]
name = "bert"
env = "BERTS_KEY"
[http]
port = 1
)",
                                   "x.toml");
  ASSERT_TRUE(config) << config.error().message();
  ASSERT_EQ(config->keys.size(), 2U);
  EXPECT_EQ(config->keys[0].name, "anna");
  EXPECT_EQ(config->keys[0].file, "anna.key");
  EXPECT_EQ(config->keys[0].requests_per_minute, 60);
  EXPECT_EQ(config->keys[1].env, "BERTS_KEY");
  EXPECT_EQ(config->keys[1].requests_per_minute, 0);
  EXPECT_EQ(config->http.port, 1);
  config->keys[1].tokens_per_minute = -3;
  const auto status = validate(*config);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().context, HasSubstr("keys[1].tokens_per_minute must be in"));
}

TEST(ServeConfig, AMissingFileIsNamed) {
  auto config = load_serve_config("no/such/file.toml");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Errc::not_found);
  EXPECT_THAT(config.error().context, HasSubstr("no/such/file.toml"));
}

TEST(ServeConfig, ValidateChecksRangesOfCommandLineValues) {
  ServeConfig config;
  config.engine.max_sequences = 0;
  auto status = validate(config);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().context,
              HasSubstr("engine.max_sequences must be in [1, 65536], got 0"));
}

TEST(ServeConfig, TheDescriptionListsEverySetting) {
  const std::string text = describe_serve_config();
  for (const char* key : {"[[keys]]", "`sha256`", "`directory`", "`replay`", "`max_queued`",
                          "`port`", "`detach_grace_ms`"}) {
    EXPECT_THAT(text, HasSubstr(key));
  }
}

TEST(ServeConfig, TheCommittedDescriptionIsTheCurrentOne) {
  const auto committed = read_text_file(std::string(CEDAR_SOURCE_DIR) + "/docs/config.md");
  ASSERT_TRUE(committed) << committed.error().message();
  EXPECT_EQ(*committed, describe_serve_config() + describe_cluster_config())
      << "write it again: build/bin/cedar config describe > docs/config.md";
}

TEST(ServeConfig, ADirectoryIsNoSettingsFile) {
  const auto config = load_serve_config(CEDAR_SOURCE_DIR);
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().code, Errc::io_error);
  EXPECT_THAT(config.error().context, HasSubstr("Is a directory"));
}

TEST(ServeConfig, AProcessAloneHasNoServices) {
  const auto config = parse_serve_config("[engine]\nengram = \"service\"\n", "s.toml");
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().context, HasSubstr("s.toml: engine.engram must be \"local\""));
  ServeConfig by_options;
  by_options.engine.engram = "service";
  EXPECT_FALSE(validate(by_options));
}

}  // namespace
}  // namespace cedar::config
