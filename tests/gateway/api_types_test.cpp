#include "gateway/api_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gateway/error_mapping.h"
#include "gateway/prepare.h"
#include "tests/gateway/cards.h"

namespace cedar::gateway {
namespace {

using testing::HasSubstr;

Result<PreparedRequest> chat(const std::string& body) {
  const ModelCard card = demo_card();
  CEDAR_TRY(Json json, read_body(body));
  CEDAR_TRY(ApiRequest request, read_chat_request(std::move(json), card));
  return prepare(std::move(request), card, 7);
}

Result<PreparedRequest> completion(const std::string& body) {
  const ModelCard card = demo_card();
  CEDAR_TRY(Json json, read_body(body));
  CEDAR_TRY(ApiRequest request, read_completion_request(json, card));
  return prepare(std::move(request), card, 7);
}

std::string with(const std::string& fields) {
  return R"({"messages":[{"role":"user","content":"Hi"}],)" + fields + "}";
}

TEST(ChatRequest, DefaultsOfAMinimalBody) {
  const auto request = chat(R"({"messages":[{"role":"user","content":"Hi"}]})");
  ASSERT_TRUE(request) << request.error().message();
  EXPECT_FALSE(request->api.stream);
  EXPECT_FLOAT_EQ(request->api.sampling.temperature, 1.0F);
  EXPECT_EQ(request->api.sampling.logprobs, -1);
  EXPECT_EQ(request->max_new_tokens, 4096);
  EXPECT_EQ(request->seed, 7U);
  EXPECT_FALSE(request->starts_in_reasoning);
  EXPECT_EQ(request->prompt.front(), 0);  // BOS
}

TEST(ChatRequest, EveryFieldArrives) {
  const auto good =
      chat(with(R"("model":"deepseek-flash","stream":true,"temperature":0.5,"top_p":0.9,
    "top_k":40,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.1,
    "logit_bias":{"5":-100,"7":2.5},"seed":42,"max_tokens":9,"max_completion_tokens":11,"min_tokens":2,
    "stop":["a","","b"],"stop_token_ids":[3],"n":2,"logprobs":true,"top_logprobs":5,
    "stream_options":{"include_usage":true},"priority":-3,"request_id":"r1","user":"u","unknown":[1])"));
  ASSERT_TRUE(good) << good.error().message();
  const ApiRequest& api = good->api;
  EXPECT_TRUE(api.stream && api.include_usage);
  EXPECT_FLOAT_EQ(api.sampling.top_p, 0.9F);
  EXPECT_EQ(api.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(api.sampling.repetition_penalty, 1.1F);
  EXPECT_EQ(api.sampling.logit_bias.size(), 2U);
  EXPECT_EQ(api.sampling.logprobs, 5);
  EXPECT_EQ(good->seed, 42U);
  EXPECT_EQ(good->max_new_tokens, 11);
  EXPECT_THAT(api.stop, testing::ElementsAre("a", "b"));
  EXPECT_THAT(api.stop_ids, testing::ElementsAre(3));
  EXPECT_EQ(api.choices, 2);
  EXPECT_EQ(api.priority, -3);
  const engine::DecodeRequest second = good->sequence(1);
  EXPECT_EQ(second.sampling.choice, 1U);
  EXPECT_EQ(second.sampling.seed, 42U);
  EXPECT_EQ(second.max_new_tokens, 11);
}

TEST(ChatRequest, NullMeansAbsent) {
  const auto request = chat(with(R"("temperature":null,"max_tokens":null,"stop":null,"tools":null,
    "tool_choice":null,"response_format":null,"stream_options":null,"seed":null,"thinking":null)"));
  ASSERT_TRUE(request) << request.error().message();
  EXPECT_FLOAT_EQ(request->api.sampling.temperature, 1.0F);
}

struct ThinkingCase {
  const char* fields;
  bool thinking;
  int effort;
};

class Thinking : public testing::TestWithParam<ThinkingCase> {};

TEST_P(Thinking, FollowsTheRequestThenTheServersDefault) {
  const auto request = chat(with(GetParam().fields));
  ASSERT_TRUE(request) << request.error().message();
  EXPECT_EQ(request->api.chat.thinking, GetParam().thinking);
  if (GetParam().thinking) {
    EXPECT_EQ(request->api.chat.effort, GetParam().effort);
  }
  EXPECT_EQ(request->starts_in_reasoning, GetParam().thinking);
}

INSTANTIATE_TEST_SUITE_P(
    Table, Thinking,
    testing::Values(
        ThinkingCase{R"("n":1)", false, 0},
        ThinkingCase{R"("thinking":{"type":"enabled"})", true, 75},
        ThinkingCase{R"("thinking":{"type":"disabled"},"reasoning_effort":"max")", false, 0},
        ThinkingCase{R"("reasoning_effort":"low")", true, 50},
        ThinkingCase{R"("reasoning_effort":"minimal")", true, 50},
        ThinkingCase{R"("reasoning_effort":"medium")", true, 75},
        ThinkingCase{R"("reasoning_effort":"ultra")", true, 100},
        ThinkingCase{R"("reasoning_effort":"none")", false, 0},
        ThinkingCase{R"("reasoning_effort":33)", true, 33},
        ThinkingCase{R"("chat_template_kwargs":{"thinking":true})", true, 75},
        ThinkingCase{R"("chat_template_kwargs":{"enable_thinking":true})", true, 75},
        ThinkingCase{R"("chat_template_kwargs":{"thinking":false,"enable_thinking":true})", false,
                     0}));

struct BadCase {
  const char* body;
  int status;
  const char* param;
  const char* message;
};

class BadChatRequest : public testing::TestWithParam<BadCase> {};

TEST_P(BadChatRequest, HasTheRightStatusFieldAndMessage) {
  const auto request = chat(GetParam().body);
  ASSERT_FALSE(request);
  const ApiError error = to_api_error(request.error());
  EXPECT_EQ(error.status, GetParam().status) << error.message;
  EXPECT_EQ(error.param, GetParam().param) << error.message;
  EXPECT_THAT(error.message, HasSubstr(GetParam().message));
  EXPECT_EQ(error.type, error.status == 404 ? "not_found_error" : "invalid_request_error");
  EXPECT_TRUE(Json::accept(error_body(error)));
}

#define USER R"({"messages":[{"role":"user","content":"Hi"}],)"

INSTANTIATE_TEST_SUITE_P(
    Table, BadChatRequest,
    testing::Values(
        BadCase{"", 400, "", "JSON"}, BadCase{"{", 400, "", "JSON"},
        BadCase{"[]", 400, "", "must be a JSON object, got an array"},
        BadCase{"\"\xff\"", 400, "", "JSON"},
        BadCase{"{\"messages\":\"\xC3\x28\"}", 400, "", "JSON"},
        BadCase{"{}", 400, "messages", "is missing"},
        BadCase{R"({"messages":null})", 400, "messages", "is missing"},
        BadCase{R"({"messages":[]})", 400, "messages", "must not be empty"},
        BadCase{R"({"messages":{}})", 400, "messages", "must be a list, got an object"},
        BadCase{R"({"messages":["x"]})", 400, "messages[0]", ""},
        BadCase{R"({"messages":[{"role":"wizard","content":"x"}]})", 400, "messages[0].role", ""},
        BadCase{R"({"messages":[{"content":"x"}]})", 400, "messages[0].role", ""},
        BadCase{R"({"messages":[{"role":"user","content":3}]})", 400, "messages[0].content", ""},
        BadCase{USER R"("model":"gpt-9"})", 404, "model", "does not serve"},
        BadCase{USER R"("model":5})", 400, "model", "must be a string"},
        BadCase{USER R"("temperature":"hot"})", 400, "temperature",
                "must be a number, got a string"},
        BadCase{USER R"("temperature":7})", 400, "temperature", "must be in [0, 2], got 7"},
        BadCase{USER R"("top_p":0})", 400, "top_p", "must be in (0, 1], got 0"},
        BadCase{USER R"("max_tokens":0})", 400, "max_tokens", "must be in [1,"},
        BadCase{USER R"("max_tokens":1.5})", 400, "max_tokens", "must be an integer, got 1.5"},
        BadCase{USER R"("max_tokens":16384})", 400, "max_tokens", "more than the context of 16384"},
        BadCase{USER R"("max_tokens":99999})", 400, "max_tokens",
                "must be in [1, 16384], got 99999"},
        BadCase{USER R"("max_tokens":9223372036854775807})", 400, "max_tokens",
                "must be in [1, 16384]"},
        BadCase{USER R"("max_tokens":99999999999999999999999})", 400, "max_tokens",
                "beyond 64 bits"},
        BadCase{USER R"("max_tokens":-4})", 400, "max_tokens", "got -4"},
        BadCase{USER R"("n":0})", 400, "n", "must be in [1, 16]"},
        BadCase{USER R"("n":2,"temperature":0})", 400, "n", "must be 1 with temperature 0"},
        BadCase{USER R"("stop":5})", 400, "stop", "must be a string or a list"},
        BadCase{USER R"("stop":[1]})", 400, "stop", "must hold strings only"},
        BadCase{
            USER
            R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]})",
            400, "stop", "at most 16"},
        BadCase{USER R"("stream":"yes"})", 400, "stream", "must be true or false"},
        BadCase{USER R"("stream_options":[]})", 400, "stream_options", "must be an object"},
        BadCase{USER R"("stream_options":{"include_usage":1}})", 400,
                "stream_options.include_usage", "true or false"},
        BadCase{USER R"("logprobs":5})", 400, "logprobs", "true or false"},
        BadCase{USER R"("top_logprobs":3})", 400, "top_logprobs", "needs logprobs"},
        BadCase{USER R"("logprobs":true,"top_logprobs":21})", 400, "top_logprobs", "[0, 20]"},
        BadCase{USER R"("logit_bias":{"x":1}})", 400, "logit_bias", "token ids"},
        BadCase{USER R"("logit_bias":{"5":1000}})", 400, "logit_bias", "[-100, 100]"},
        BadCase{USER R"("seed":1.5})", 400, "seed", "64-bit integer"},
        BadCase{USER R"("tools":{}})", 400, "tools", "must be a list"},
        BadCase{USER R"("tools":[5]})", 400, "tools[0]", ""},
        BadCase{R"({"messages":[{"role":"user","content":5}],"tools":[]})", 400,
                "messages[0].content", ""},
        BadCase{
            R"({"messages":[{"role":"user","content":5}],"response_format":{"type":"json_object"}})",
            400, "messages[0].content", ""},
        BadCase{USER R"("tool_choice":"required"})", 400, "tool_choice", "tools is empty"},
        BadCase{USER R"("response_format":{"type":"xml"}})", 400, "response_format.type",
                "must be text"},
        BadCase{USER R"("response_format":{"type":"json_schema"}})", 400,
                "response_format.json_schema", "is missing"},
        BadCase{USER
                R"("response_format":{"type":"json_schema","json_schema":{"schema":{"not":{}}}}})",
                400, "response_format.json_schema.schema", "not at # is not supported"},
        BadCase{USER R"("thinking":{"type":"sometimes"}})", 400, "thinking.type",
                "enabled or disabled"},
        BadCase{USER R"("thinking":true})", 400, "thinking", "must be an object"},
        BadCase{USER R"("reasoning_effort":"heroic"})", 400, "reasoning_effort", ""},
        BadCase{USER R"("reasoning_effort":101})", 400, "reasoning_effort", ""},
        BadCase{USER R"("stop_token_ids":[4096]})", 400, "stop_token_ids", "[0, 4096), got 4096"}));

TEST(ChatRequest, ErrorsNeverRepeatThePrompt) {
  const auto request = chat(R"({"messages":[{"role":"user","content":{"secret":"pa55"}}]})");
  ASSERT_FALSE(request);
  EXPECT_THAT(request.error().message(), testing::Not(HasSubstr("pa55")));
}

TEST(ChatRequest, APromptLongerThanTheContextIsRefused) {
  std::string words;
  for (int i = 0; i < 30000; ++i) words += "x ";
  const auto request = chat(R"({"messages":[{"role":"user","content":")" + words + R"("}]})");
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().code, Errc::context_too_long);
  const ApiError error = to_api_error(request.error());
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "messages");
  EXPECT_THAT(error.message, HasSubstr("16384"));
}

TEST(ChatRequest, TheAnswersLimitIsBoundedByTheContext) {
  std::string words;
  for (int i = 0; i < 7000; ++i) words += "x ";
  const auto request = chat(R"({"messages":[{"role":"user","content":")" + words + R"("}]})");
  ASSERT_TRUE(request) << request.error().message();
  EXPECT_EQ(request->max_new_tokens,
            std::min<int64_t>(4096, 16384 - static_cast<int64_t>(request->prompt.size())));
}

TEST(ChatRequest, DeepNestingIsRefused) {
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const auto request = chat(with(R"("tools":)" + deep));
  ASSERT_FALSE(request);
  EXPECT_EQ(to_api_error(request.error()).status, 400);
}

TEST(CompletionRequest, TakesTextOrIds) {
  const auto text =
      completion(R"({"prompt":"Hello there","max_tokens":3,"logprobs":2,"echo":true})");
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_EQ(text->prompt, demo_card().tokenizer->encode("Hello there"));
  EXPECT_EQ(text->echo_text, "Hello there");
  EXPECT_EQ(text->api.sampling.logprobs, 2);
  const auto ids = completion(R"({"prompt":[0,5,9]})");
  ASSERT_TRUE(ids) << ids.error().message();
  EXPECT_THAT(ids->prompt, testing::ElementsAre(0, 5, 9));
  const auto nested = completion(R"({"prompt":[[0,5]]})");
  ASSERT_TRUE(nested);
  EXPECT_THAT(nested->prompt, testing::ElementsAre(0, 5));
  const auto one = completion(R"({"prompt":["Hello there"]})");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->prompt, text->prompt);
}

class BadCompletionRequest : public testing::TestWithParam<BadCase> {};

TEST_P(BadCompletionRequest, HasTheRightStatusFieldAndMessage) {
  const auto request = completion(GetParam().body);
  ASSERT_FALSE(request);
  const ApiError error = to_api_error(request.error());
  EXPECT_EQ(error.status, GetParam().status);
  EXPECT_EQ(error.param, GetParam().param);
  EXPECT_THAT(error.message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadCompletionRequest,
    testing::Values(BadCase{"{}", 400, "prompt", "is missing"},
                    BadCase{R"({"prompt":""})", 400, "prompt", "must not be empty"},
                    BadCase{R"({"prompt":[]})", 400, "prompt", "must not be empty"},
                    BadCase{R"({"prompt":5})", 400, "prompt", "a string or a list"},
                    BadCase{R"({"prompt":[5,"a"]})", 400, "prompt", "got a string"},
                    BadCase{R"({"prompt":[-1]})", 400, "prompt", "got -1"},
                    BadCase{R"({"prompt":[4096]})", 400, "prompt", "[0, 4096)"},
                    BadCase{R"({"prompt":["a","b"]})", 400, "prompt", "one prompt per request"},
                    BadCase{R"({"prompt":"a","suffix":"b"})", 400, "suffix", "not supported"},
                    BadCase{R"({"prompt":"a","best_of":3})", 400, "best_of", "must not exceed n"},
                    BadCase{R"({"prompt":"a","logprobs":21})", 400, "logprobs", "[0, 20]"}));

TEST(ErrorMapping, EveryCodeHasAStatusAndAType) {
  EXPECT_EQ(to_api_error(make_error(Errc::overloaded, "x")).status, 503);
  EXPECT_EQ(to_api_error(make_error(Errc::overloaded, "x")).retry_after_s, 1);
  EXPECT_EQ(to_api_error(make_error(Errc::unavailable, "x")).type, "overloaded_error");
  EXPECT_EQ(to_api_error(make_error(Errc::deadline_exceeded, "x")).status, 504);
  EXPECT_EQ(to_api_error(make_error(Errc::deadline_exceeded, "x")).type, "timeout_error");
  EXPECT_EQ(to_api_error(make_error(Errc::internal, "layer: broken")).param, "");
  EXPECT_EQ(to_api_error(make_error(Errc::internal, "x")).type, "internal_error");
  EXPECT_EQ(to_api_error(make_error(Errc::io_error, "")).message, "io_error");
}

}  // namespace
}  // namespace cedar::gateway
