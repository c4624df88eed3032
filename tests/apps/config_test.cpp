// `cedar config`: what it prints and with which status it ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"
#include "tests/support/temp_directory.h"

namespace cedar {
namespace {

using test::run_program;
using testing::HasSubstr;

const std::string kExample = std::string(CEDAR_SOURCE_DIR) + "/config/examples/one_machine.toml";

TEST(ConfigCommand, CheckListsTheNodesOfAGoodFile) {
  const auto result = run_program({CEDAR_PROGRAM, "config", "check", kExample});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("cluster cedar, 7 nodes"));
  EXPECT_THAT(result.out, HasSubstr("gateway, control 127.0.0.1:7400 on cpu"));
}

TEST(ConfigCommand, CheckSaysWhatIsWrong) {
  const test::TempDirectory directory;
  const std::string cluster = directory.write("c.toml", "[[node]]\nname = \"a b\"\n");
  const auto bad = run_program({CEDAR_PROGRAM, "config", "check", cluster});
  EXPECT_EQ(bad.status, 1);
  EXPECT_THAT(bad.err, HasSubstr("cedar config: " + cluster + ": node[0].name must be"));
  const std::string serve = directory.write("s.toml", "[http]\nport = 1\n");
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "config", "check", serve}).status, 0);
  const std::string typo = directory.write("t.toml", "[http]\nprot = 1\n");
  const auto refused = run_program({CEDAR_PROGRAM, "config", "check", typo});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("http.prot is no known setting"));
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "config", "check", directory.file("none")}).status, 1);
}

// Relative paths are relative to the file, wherever the program is started.
TEST(ConfigCommand, CheckReadsTheFilesOfAServer) {
  const test::TempDirectory directory;
  directory.write("a.key", "a-key-of-a-test-0123\n");
  const std::string good = directory.write("s.toml", "[[keys]]\nname = \"a\"\nfile = \"a.key\"\n");
  const auto checked = run_program({CEDAR_PROGRAM, "config", "check", good});
  EXPECT_EQ(checked.status, 0) << checked.err;
  const std::pair<const char*, std::string> cases[] = {
      {"[[keys]]\nname = \"a\"\nfile = \"b.key\"\n", "keys[0].file: " + directory.file("b.key")},
      {"[http]\ntls_certificate = \"a.pem\"\ntls_key = \"a.key\"\n",
       "http.tls_certificate: " + directory.file("a.pem")},
      {"[http]\nallowed_hosts = [\"a:1\"]\n", "http.allowed_hosts must hold names"},
      {"[model]\ndirectory = \"m\"\n", "model.directory: " + directory.file("m/config.json")},
  };
  for (const auto& [text, complaint] : cases) {
    const std::string bad = directory.write("t.toml", text);
    const auto refused = run_program({CEDAR_PROGRAM, "config", "check", bad});
    EXPECT_EQ(refused.status, 1) << text;
    EXPECT_THAT(refused.err, HasSubstr(complaint));
  }
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "config", "check", "--help"}).status, 0);
}

TEST(ConfigCommand, CheckNotesFilesThatThisMachineLacks) {
  const auto result =
      run_program({CEDAR_PROGRAM, "config", "check",
                   std::string(CEDAR_SOURCE_DIR) + "/config/examples/two_encoders.toml"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("note: cluster.secret_file: "));
}

TEST(ConfigCommand, ShowPrintsWhatHoldsForANode) {
  const auto result = run_program({CEDAR_PROGRAM, "config", "show", kExample, "encoder-2"});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("name = \"encoder-2\""));
  EXPECT_THAT(result.out, HasSubstr("threads = 1\n"));
  const auto nobody = run_program({CEDAR_PROGRAM, "config", "show", kExample, "nobody"});
  EXPECT_EQ(nobody.status, 1);
  EXPECT_THAT(nobody.err, HasSubstr("has no node \"nobody\""));
}

TEST(ConfigCommand, WrongUsageIsStatusTwo) {
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "config"}).status, 2);
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "config", "check"}).status, 2);
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "config", "show", kExample}).status, 2);
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "config", "--help"}).status, 0);
}

}  // namespace
}  // namespace cedar
