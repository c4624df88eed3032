#include "gateway/answer_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gateway/cards.h"

namespace cedar::gateway {
namespace {

AnswerHead head(ApiKind kind = ApiKind::chat) {
  AnswerHead result;
  result.kind = kind;
  result.id = "chatcmpl-1";
  result.created = 5;
  result.model = "demo";
  result.fingerprint = "fp";
  result.seed = 99;
  return result;
}

TokenReport report(TokenId id, float logprob, bool reasoning = false) {
  TokenReport result;
  result.token.token = id;
  result.token.logprob = logprob;
  result.token.top = {{id, logprob}, {id + 1, logprob - 1}};
  result.in_reasoning = reasoning;
  return result;
}

TEST(AnswerJson, IdsAreRandomAndMarked) {
  const std::string id = random_id("call_");
  EXPECT_EQ(id.size(), 5U + 24U);
  EXPECT_EQ(id.rfind("call_", 0), 0U);
  EXPECT_NE(id, random_id("call_"));
}

TEST(AnswerJson, AChunkHasTheDialectsFields) {
  ChunkChoice choice;
  choice.index = 1;
  choice.delta = R"({"content":"\"x\""})";
  const Json chunk = Json::parse(chunk_json(head(), choice, "null"));
  EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  EXPECT_EQ(chunk["id"], "chatcmpl-1");
  EXPECT_EQ(chunk["choices"][0]["index"], 1);
  EXPECT_EQ(chunk["choices"][0]["delta"]["content"], "\"x\"");
  EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(chunk["choices"][0]["logprobs"].is_null());
  EXPECT_TRUE(chunk["usage"].is_null());
  EXPECT_FALSE(Json::parse(chunk_json(head(), choice, "")).contains("usage"));
}

TEST(AnswerJson, DeltasOfAToolCall) {
  CallIds ids;
  const Json begin = Json::parse(delta_json({model::OutputKind::call_begin, "f", 1}, ids));
  EXPECT_EQ(begin["tool_calls"][0]["index"], 1);
  EXPECT_EQ(begin["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(begin["tool_calls"][0]["function"]["arguments"], "");
  EXPECT_EQ(begin["tool_calls"][0]["id"], ids.of(1));
  const Json more = Json::parse(delta_json({model::OutputKind::call_arguments, "{\"a", 1}, ids));
  EXPECT_EQ(more["tool_calls"][0]["function"]["arguments"], "{\"a");
  EXPECT_FALSE(more["tool_calls"][0].contains("id"));
  EXPECT_EQ(delta_json({model::OutputKind::call_end, "", 1}, ids), "");
}

TEST(AnswerJson, UsageAddsUp) {
  const Json usage = Json::parse(usage_json({100, 32, 20, 12, 16, 8, "windows"}));
  EXPECT_EQ(usage["total_tokens"], 120);
  EXPECT_EQ(usage["prompt_cache_hit_tokens"], 32);
  EXPECT_EQ(usage["prompt_cache_miss_tokens"], 68);
  const Json& prompt = usage["prompt_tokens_details"];
  EXPECT_EQ(prompt["cached_tokens"], 32);
  EXPECT_EQ(prompt["cached_tokens_disk"], 16);
  EXPECT_EQ(prompt["replayed_tokens"], 8);
  EXPECT_EQ(prompt["resume"], "windows");
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 12);
}

TEST(AnswerJson, AWholeChatAnswer) {
  FinishedChoice choice;
  choice.message = {"thoughts", "text", {{"f", "{\"a\": 1}"}}};
  choice.has_reasoning = true;
  choice.finish_reason = "tool_calls";
  ApiRequest request;
  const Json answer =
      Json::parse(answer_json(head(), {choice}, {3, 0, 2, 1}, request, *demo_card().tokenizer));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["seed"], 99);
  const Json& first = answer["choices"][0];
  EXPECT_EQ(first["message"]["content"], "text");
  EXPECT_EQ(first["message"]["reasoning_content"], "thoughts");
  EXPECT_EQ(first["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
  EXPECT_EQ(first["finish_reason"], "tool_calls");
  EXPECT_TRUE(first["logprobs"].is_null());
}

TEST(AnswerJson, WithoutThinkingThereIsNoReasoningField) {
  FinishedChoice choice;
  choice.finish_reason = "stop";
  const Json answer =
      Json::parse(answer_json(head(), {choice}, {}, ApiRequest{}, *demo_card().tokenizer));
  EXPECT_FALSE(answer["choices"][0]["message"].contains("reasoning_content"));
  EXPECT_FALSE(answer["choices"][0]["message"].contains("tool_calls"));
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "");
}

TEST(AnswerJson, LogprobsOfAChatCarryBytesAndRivals) {
  const auto& tokenizer = *demo_card().tokenizer;
  const TokenId id = tokenizer.encode("ticket")[0];
  const Json logprobs =
      Json::parse(logprobs_json(ApiKind::chat, {report(9, -1, true), report(id, -0.5)}, tokenizer));
  ASSERT_EQ(logprobs["content"].size(), 1U);
  const Json& entry = logprobs["content"][0];
  std::string bytes;
  for (const Json& byte : entry["bytes"]) bytes += static_cast<char>(byte.get<int>());
  EXPECT_EQ(bytes, tokenizer.token_bytes(id));
  EXPECT_FLOAT_EQ(entry["logprob"].get<float>(), -0.5F);
  EXPECT_EQ(entry["top_logprobs"].size(), 2U);
  EXPECT_EQ(logprobs["reasoning_content"].size(), 1U);
  EXPECT_EQ(logprobs_json(ApiKind::chat, {}, tokenizer), "null");
}

TEST(AnswerJson, LogprobsOfACompletionAreColumns) {
  const auto& tokenizer = *demo_card().tokenizer;
  std::vector<TokenReport> tokens{report(300, -0.5), report(301, -2)};
  tokens[1].text_offset = 4;
  const Json logprobs = Json::parse(logprobs_json(ApiKind::completion, tokens, tokenizer));
  EXPECT_EQ(logprobs["tokens"].size(), 2U);
  EXPECT_FLOAT_EQ(logprobs["token_logprobs"][1].get<float>(), -2.0F);
  EXPECT_EQ(logprobs["text_offset"], Json::parse("[0,4]"));
  EXPECT_EQ(logprobs["top_logprobs"].size(), 2U);
}

TEST(AnswerJson, InfiniteLogprobsStayJson) {
  const auto tokens = std::vector{report(300, -std::numeric_limits<float>::infinity())};
  EXPECT_TRUE(Json::accept(logprobs_json(ApiKind::chat, tokens, *demo_card().tokenizer)));
}

TEST(AnswerJson, ACompletionHasTextInsteadOfAMessage) {
  FinishedChoice choice;
  choice.message.content = "abc";
  choice.finish_reason = "length";
  const Json answer = Json::parse(
      answer_json(head(ApiKind::completion), {choice}, {}, ApiRequest{}, *demo_card().tokenizer));
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], "abc");
  EXPECT_FALSE(answer["choices"][0].contains("message"));
}

TEST(AnswerJson, ModelsListsNameAndAliases) {
  const Json models = Json::parse(models_json(demo_card()));
  EXPECT_EQ(models["object"], "list");
  ASSERT_EQ(models["data"].size(), 2U);
  EXPECT_EQ(models["data"][0]["id"], "demo");
  EXPECT_EQ(models["data"][1]["id"], "deepseek-flash");
}

}  // namespace
}  // namespace cedar::gateway
