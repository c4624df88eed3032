// `cedar generate`, as a user runs it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace cedar {
namespace {

using Json = nlohmann::ordered_json;
using test::run_program;
using testing::HasSubstr;

std::vector<Json> golden_prompts() {
  std::ifstream in(std::string(CEDAR_SOURCE_DIR) + "/tests/golden/demo/prompts.json");
  return Json::parse(in).get<std::vector<Json>>();
}

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

TEST(Generate, AFileOfPromptsGivesTheGoldenIdsInOrder) {
  std::string input;
  std::vector<Json> expected;
  for (const Json& record : golden_prompts()) {
    if (!record.contains("want") || record["want"].is_null()) continue;
    input += Json{{"id", record["name"]}, {"prompt", record["prompt"]}, {"max_tokens", 32}}.dump() +
             "\n";
    expected.push_back(record);
  }
  ASSERT_GE(expected.size(), 12U);
  const auto result = run_program({CEDAR_PROGRAM, "generate", "--input", "-"}, input);
  EXPECT_EQ(result.status, 0) << result.err;
  const auto answers = lines_of(result.out);
  ASSERT_EQ(answers.size(), expected.size());
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i]["id"], expected[i]["name"]);
    EXPECT_EQ(answers[i]["ids"], expected[i]["greedy"]) << expected[i]["name"];
    EXPECT_EQ(answers[i]["text"], expected[i]["want"]);
    EXPECT_EQ(answers[i]["usage"]["prompt_tokens"], expected[i]["ids"].size());
    EXPECT_EQ(answers[i]["usage"]["completion_tokens"], expected[i]["greedy"].size());
  }
}

TEST(Generate, BadLinesAreErrorsAndTheOthersAreAnswered) {
  const std::string input =
      "{\"id\":\"good\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}\n"
      "{not json\n"
      "\n"
      "{\"id\":7,\"messages\":[{\"role\":\"wizard\",\"content\":\"x\"}]}\n"
      "{\"id\":\"empty\"}\n"
      "{\"id\":\"long\",\"prompt\":\"x\",\"max_tokens\":999999}\n"
      "\"a string\"\n"
      "{\"id\":\"last\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"stop\":\"Give\"}"
      "\n";
  const auto result = run_program({CEDAR_PROGRAM, "generate", "--input", "-"}, input);
  EXPECT_EQ(result.status, 1);
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 7U);
  EXPECT_EQ(lines[0]["text"], "Hello! Give me a document and ask me about it.");
  EXPECT_EQ(lines[1]["id"], 2);
  EXPECT_THAT(lines[1]["error"].get<std::string>(), HasSubstr("JSON"));
  EXPECT_EQ(lines[2]["id"], 7);
  EXPECT_THAT(lines[2]["error"].get<std::string>(), HasSubstr("messages[0].role"));
  EXPECT_THAT(lines[3]["error"].get<std::string>(), HasSubstr("neither messages nor prompt"));
  EXPECT_THAT(lines[4]["error"].get<std::string>(), HasSubstr("more than the context"));
  EXPECT_TRUE(lines[5].contains("error"));
  EXPECT_EQ(lines[6]["text"], "Hello! ");
  EXPECT_EQ(lines[6]["finish_reason"], "stop");
}

TEST(Generate, OneMessageStreamsItsText) {
  const auto result = run_program({CEDAR_PROGRAM, "generate", "--message", "Hello"});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.out, "Hello! Give me a document and ask me about it.\n");
  EXPECT_THAT(result.err, HasSubstr("tokens/s"));
}

TEST(Generate, AChatFileAndRawPromptsWork) {
  const std::string path = testing::TempDir() + "/cedar_chat.json";
  std::ofstream(path) << R"({"messages":[{"role":"user","content":"Hello"}],"max_tokens":3})";
  const auto chat = run_program({CEDAR_PROGRAM, "generate", "--chat", path, "--json"});
  EXPECT_EQ(Json::parse(chat.out)["finish_reason"], "length");
  const auto raw = run_program({CEDAR_PROGRAM, "generate", "--prompt", "-"},
                               "<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>");
  EXPECT_EQ(raw.out, "Hello! Give me a document and ask me about it.\n");
}

TEST(Generate, WrongUseAndMissingFilesAreExplained) {
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "generate"}).status, 2);
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "generate", "--message", "a", "--prompt", "b"}).status, 2);
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "generate", "--help"}).status, 0);
  const auto model =
      run_program({CEDAR_PROGRAM, "generate", "--model", "no/such/dir", "--message", "a"});
  EXPECT_EQ(model.status, 1);
  EXPECT_THAT(model.err, HasSubstr("no/such/dir"));
  const auto input = run_program({CEDAR_PROGRAM, "generate", "--input", "no/such/file"});
  EXPECT_EQ(input.status, 1);
  EXPECT_THAT(input.err, HasSubstr("no/such/file"));
}

TEST(Program, KnowsItsCommands) {
  EXPECT_EQ(run_program({CEDAR_PROGRAM}).status, 2);
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "--help"}).status, 0);
  EXPECT_THAT(run_program({CEDAR_PROGRAM, "--version"}).out, HasSubstr("cedar "));
  const auto unknown = run_program({CEDAR_PROGRAM, "dance"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("unknown command 'dance'"));
}

}  // namespace
}  // namespace cedar
