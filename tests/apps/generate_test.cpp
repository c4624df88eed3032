// `cedar generate`, as a user runs it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/support/program.h"
#include "tests/support/temp_directory.h"

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
  EXPECT_THAT(lines[4]["error"].get<std::string>(),
              HasSubstr("max_tokens: must be in [1, 16384], got 999999"));
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

TEST(Generate, AnInputIsNeverItsOwnOutput) {
  const test::TempDirectory folder;
  const std::string line = R"({"prompt":"Hello","max_tokens":2})"
                           "\n";
  const std::string path = folder.write("in.jsonl", line);
  const auto same = run_program({CEDAR_PROGRAM, "generate", "--input", path, "--output", path});
  EXPECT_EQ(same.status, 2);
  EXPECT_THAT(same.err, HasSubstr("--output: is the file that is read"));
  EXPECT_EQ(test::read_file(path), line);
  const auto chat = run_program({CEDAR_PROGRAM, "generate", "--chat", path, "--output", path});
  EXPECT_EQ(chat.status, 2);
  EXPECT_EQ(test::read_file(path), line);
}

TEST(Generate, AnswersGoToTheOutputFile) {
  const test::TempDirectory folder;
  const std::string answer = "Hello! Give me a document and ask me about it.\n";
  const std::string out = folder.file("out");
  const auto one = run_program({CEDAR_PROGRAM, "generate", "--message", "Hello", "--output", out});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.out, "");
  EXPECT_EQ(test::read_file(out), answer);
  const std::string in = folder.write("in", R"({"messages":[{"role":"user","content":"Hello"}]})"
                                            "\n");
  const auto batch = run_program({CEDAR_PROGRAM, "generate", "--input", in, "--output", out});
  EXPECT_EQ(batch.status, 0) << batch.err;
  EXPECT_EQ(lines_of(test::read_file(out)).at(0)["text"].get<std::string>() + "\n", answer);
}

TEST(Generate, LinesAreNamedInTheirErrors) {
  const std::string input =
      "\n"
      "{bad\n"
      "{\"id\":\"both\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"prompt\":\"y\"}\n"
      "{\"id\":\"none\",\"messages\":null}\n"
      "{\"messages\":[]}\n";
  const auto result = run_program({CEDAR_PROGRAM, "generate", "--input", "-"}, input);
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("0 answers, 4 errors"));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("json.exception")));
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0]["line"], 2);
  EXPECT_EQ(lines[0]["id"], 2);
  EXPECT_THAT(lines[0]["error"].get<std::string>(), testing::Not(HasSubstr("line 1")));
  EXPECT_EQ(lines[1]["id"], "both");
  EXPECT_EQ(lines[1]["line"], 3);
  EXPECT_THAT(lines[1]["error"].get<std::string>(), HasSubstr("both given"));
  EXPECT_EQ(lines[2]["id"], "none");
  EXPECT_THAT(lines[2]["error"].get<std::string>(), HasSubstr("neither messages nor prompt"));
  EXPECT_EQ(lines[3]["line"], 5);
}

TEST(Generate, WrongValuesAreRefusedBeforeAModelIsLoaded) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--threads", "-5"}, "--threads: must be an integer in [1, 1024], got -5"},
      {{"--max-tokens", "0"}, "--max-tokens: must be an integer in [1, 2147483647], got 0"},
      {{"--max-tokens", "99999999999999999999"}, "got 99999999999999999999"},
      {{"--temperature", "nan"}, "--temperature: must be a number in [0, 2], got nan"},
      {{"--temperature", "inf"}, "got inf"},
      {{"--device", "abacus"}, "abacus"},
      {{"--bogus"}, "--bogus"},
  };
  for (const auto& [arguments, words] : cases) {
    std::vector<std::string> all = {CEDAR_PROGRAM, "generate",  "--model",
                                    "no/such",     "--message", "Hi"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto result = run_program(all);
    EXPECT_EQ(result.status, 2) << words;
    EXPECT_THAT(result.err, HasSubstr(words));
    EXPECT_THAT(result.err, testing::Not(HasSubstr("no/such")));
  }
}

// As for the API, an empty message is one.
TEST(Generate, AMessageMayBeEmpty) {
  const std::vector<std::string> command = {CEDAR_PROGRAM,  "generate", "--json",
                                            "--max-tokens", "2",        "--message"};
  auto by_option = command;
  by_option.push_back("");
  const auto empty = run_program(by_option);
  EXPECT_EQ(empty.status, 0) << empty.err;
  EXPECT_THAT(empty.out, HasSubstr("\"completion_tokens\":"));
  auto by_input = command;
  by_input.push_back("-");
  EXPECT_EQ(run_program(by_input).out, empty.out);
  const test::TempDirectory folder;
  const std::string chat =
      folder.write("chat", R"({"messages":[{"role":"user","content":""}],"max_tokens":2})");
  EXPECT_EQ(run_program({CEDAR_PROGRAM, "generate", "--json", "--chat", chat}).out, empty.out);
}

TEST(Generate, DirectoriesAndBrokenFilesAreExplained) {
  const test::TempDirectory folder;
  for (const char* option : {"--chat", "--input"}) {
    const auto result = run_program({CEDAR_PROGRAM, "generate", option, folder.path()});
    EXPECT_EQ(result.status, 1) << option;
    EXPECT_THAT(result.err, HasSubstr(folder.path() + ": Is a directory"));
  }
  const auto broken = run_program(
      {CEDAR_PROGRAM, "generate", "--chat", folder.write("chat.json", "{\"messages\":")});
  EXPECT_EQ(broken.status, 1);
  EXPECT_THAT(broken.err, HasSubstr("not valid JSON"));
  EXPECT_THAT(broken.err, testing::Not(HasSubstr("json.exception")));
  for (const char* command : {"generate", "inspect"}) {
    const std::vector<std::string> all =
        command == std::string("inspect")
            ? std::vector<std::string>{CEDAR_PROGRAM, command, "/no/such/model"}
            : std::vector<std::string>{CEDAR_PROGRAM,    command,     "--model",
                                       "/no/such/model", "--message", "Hi"};
    const auto missing = run_program(all);
    EXPECT_EQ(missing.status, 1);
    EXPECT_THAT(missing.err, HasSubstr("/no/such/model: no such directory"));
  }
}

/// A model's directory with its settings and vocabulary, but without weights.
void copy_demo_without_weights(const std::string& to) {
  const std::string demo = std::string(CEDAR_SOURCE_DIR) + "/config/demo/";
  for (const char* name : {"config.json", "tokenizer.json"}) {
    std::filesystem::copy_file(demo + name, to + "/" + name);
  }
}

TEST(Inspect, WeightsThatCannotBeReadAreExplained) {
  const test::TempDirectory shards;
  copy_demo_without_weights(shards.path());
  const std::string shard = "model-00001-of-00002.safetensors";
  shards.write(shard, "x");
  const auto no_index = run_program({CEDAR_PROGRAM, "inspect", shards.path()});
  EXPECT_EQ(no_index.status, 1);
  EXPECT_THAT(no_index.out + no_index.err,
              HasSubstr("has shards (" + shard + ") but no model.safetensors.index.json"));
  const test::TempDirectory pipe;
  copy_demo_without_weights(pipe.path());
  ASSERT_EQ(::mkfifo(pipe.file("model.safetensors").c_str(), 0600), 0);
  const auto waits = run_program({CEDAR_PROGRAM, "inspect", pipe.path()});
  EXPECT_EQ(waits.status, 1);
  EXPECT_THAT(waits.out + waits.err, HasSubstr("is not a regular file"));
}

TEST(Program, WhatCannotBeWrittenIsAFailure) {
  const std::string demo = std::string(CEDAR_SOURCE_DIR) + "/config/demo";
  for (const std::string& arguments :
       {std::string("generate --message Hello"), std::string("generate --message Hello --json"),
        "inspect " + demo, std::string("--help"), std::string("--version")}) {
    const auto result = run_program(
        {"/bin/sh", "-c", std::string(CEDAR_PROGRAM) + " " + arguments + " >/dev/full"});
    EXPECT_EQ(result.status, 1) << arguments;
    EXPECT_THAT(result.err, HasSubstr("cannot write standard output")) << arguments;
  }
}

TEST(Program, UnknownOptionsAreWrongUseEverywhere) {
  for (const char* command :
       {"generate", "inspect", "bench", "verify", "bench engine", "bench kernels"}) {
    const auto result =
        run_program({"/bin/sh", "-c", std::string(CEDAR_PROGRAM) + " " + command + " --bogus"});
    EXPECT_EQ(result.status, 2) << command;
    EXPECT_THAT(result.err, HasSubstr("--bogus")) << command;
    EXPECT_THAT(result.err, testing::Not(HasSubstr("needs a value"))) << command;
  }
}

TEST(Program, VerifySaysLastWhatIsWrong) {
  const auto result = run_program({CEDAR_PROGRAM, "verify", "model", "golden"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(
      result.err,
      testing::EndsWith("cedar verify: unexpected argument 'model': the checkpoint is named by "
                        "--model, the golden values by --golden\n"));
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
