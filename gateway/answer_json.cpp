#include "gateway/answer_json.h"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <random>

#include "model/json_python.h"
#include "model/utf8.h"

namespace cedar::gateway {
namespace {

std::string number(double value) {
  if (!std::isfinite(value)) value = -9999.0;  // JSON has no infinity; the dialect's own stand-in
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

/// The token's bytes as text, and as the list that alone is exact.
std::string token_fields(TokenId id, float logprob, const model::Tokenizer& tokenizer) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  std::string text = R"({"token":)" + json_string(model::sanitize_utf8(bytes)) + R"(,"logprob":)" +
                     number(static_cast<double>(logprob)) + R"(,"bytes":[)";
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(static_cast<unsigned char>(bytes[i]));
  }
  return text + ']';
}

std::string chat_entry(const engine::SampledToken& token, const model::Tokenizer& tokenizer) {
  std::string text = token_fields(token.token, token.logprob.value_or(0), tokenizer);
  text += R"(,"top_logprobs":[)";
  for (size_t i = 0; i < token.top.size(); ++i) {
    if (i > 0) text += ',';
    text += token_fields(token.top[i].token, token.top[i].logprob, tokenizer) + '}';
  }
  return text + "]}";
}

std::string chat_entries(const std::vector<TokenReport>& tokens, bool of_reasoning,
                         const model::Tokenizer& tokenizer) {
  std::string text = "[";
  for (const TokenReport& report : tokens) {
    if (report.in_reasoning != of_reasoning || !report.token.logprob) continue;
    if (text.size() > 1) text += ',';
    text += chat_entry(report.token, tokenizer);
  }
  return text + ']';
}

std::string completion_logprobs(const std::vector<TokenReport>& tokens,
                                const model::Tokenizer& tokenizer) {
  std::string names, values, tops, offsets;
  for (const TokenReport& report : tokens) {
    if (!names.empty()) {
      names += ',';
      values += ',';
      tops += ',';
      offsets += ',';
    }
    offsets += std::to_string(report.text_offset);
    names += json_string(model::sanitize_utf8(tokenizer.token_bytes(report.token.token)));
    values += number(static_cast<double>(report.token.logprob.value_or(0)));
    tops += '{';
    for (size_t i = 0; i < report.token.top.size(); ++i) {
      if (i > 0) tops += ',';
      const engine::TokenLogprob& rival = report.token.top[i];
      tops += json_string(model::sanitize_utf8(tokenizer.token_bytes(rival.token))) + ':' +
              number(static_cast<double>(rival.logprob));
    }
    tops += '}';
  }
  return R"({"tokens":[)" + names + R"(],"token_logprobs":[)" + values + R"(],"top_logprobs":[)" +
         tops + R"(],"text_offset":[)" + offsets + "]}";
}

std::string head_fields(const AnswerHead& head, bool chunk) {
  const char* object = head.kind == ApiKind::completion ? "text_completion"
                       : chunk                          ? "chat.completion.chunk"
                                                        : "chat.completion";
  return R"({"id":)" + json_string(head.id) + R"(,"object":")" + object + R"(","created":)" +
         std::to_string(head.created) + R"(,"model":)" + json_string(head.model) +
         R"(,"system_fingerprint":)" + json_string(head.fingerprint);
}

std::string reason_json(std::string_view reason) {
  return reason.empty() ? std::string("null") : json_string(reason);
}

std::string message_json(const FinishedChoice& choice) {
  const model::ParsedMessage& message = choice.message;
  std::string text = R"({"role":"assistant","content":)" + json_string(message.content);
  if (choice.has_reasoning) text += R"(,"reasoning_content":)" + json_string(message.reasoning);
  if (!message.calls.empty()) {
    text += R"(,"tool_calls":[)";
    for (size_t i = 0; i < message.calls.size(); ++i) {
      if (i > 0) text += ',';
      text += R"({"id":)" + json_string(random_id("call_")) +
              R"(,"type":"function","function":{"name":)" + json_string(message.calls[i].name) +
              R"(,"arguments":)" + json_string(message.calls[i].arguments) + "}}";
    }
    text += ']';
  }
  return text + '}';
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  model::append_json_escaped(out, text);
  return out + '"';
}

uint64_t random_seed() {
  thread_local std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

std::string random_id(std::string_view prefix) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  thread_local std::mt19937_64 generator(random_seed());
  std::uniform_int_distribution<size_t> pick(0, kLetters.size() - 1);
  std::string id(prefix);
  for (int i = 0; i < 24; ++i) id += kLetters[pick(generator)];
  return id;
}

std::string usage_json(const Usage& usage) {
  const std::string hit = std::to_string(usage.cached_tokens);
  return R"({"prompt_tokens":)" + std::to_string(usage.prompt_tokens) + R"(,"completion_tokens":)" +
         std::to_string(usage.completion_tokens) + R"(,"total_tokens":)" +
         std::to_string(usage.prompt_tokens + usage.completion_tokens) +
         R"(,"prompt_cache_hit_tokens":)" + hit + R"(,"prompt_cache_miss_tokens":)" +
         std::to_string(usage.prompt_tokens - usage.cached_tokens) +
         R"(,"prompt_tokens_details":{"cached_tokens":)" + hit + R"(,"cached_tokens_disk":)" +
         std::to_string(usage.disk_tokens) + R"(,"replayed_tokens":)" +
         std::to_string(usage.replayed_tokens) + R"(,"resume":")" + std::string(usage.resume) +
         R"("},"completion_tokens_details":{"reasoning_tokens":)" +
         std::to_string(usage.reasoning_tokens) + "}}";
}

AnswerHead AnswerHead::make(const PreparedRequest& request, const ModelCard& card) {
  AnswerHead head;
  head.kind = request.api.kind;
  head.id = random_id(head.kind == ApiKind::chat ? "chatcmpl-" : "cmpl-");
  head.created = static_cast<int64_t>(std::time(nullptr));
  head.model = card.name;
  head.fingerprint = card.fingerprint;
  head.seed = request.seed;
  return head;
}

std::string logprobs_json(ApiKind kind, const std::vector<TokenReport>& tokens,
                          const model::Tokenizer& tokenizer) {
  if (tokens.empty() || !tokens.front().token.logprob) return "null";
  if (kind == ApiKind::completion) return completion_logprobs(tokens, tokenizer);
  std::string text = R"({"content":)" + chat_entries(tokens, false, tokenizer);
  const std::string reasoning = chat_entries(tokens, true, tokenizer);
  if (reasoning != "[]") text += R"(,"reasoning_content":)" + reasoning;
  return text + '}';
}

std::string token_ids_json(const std::vector<TokenReport>& tokens) {
  std::string text = "[";
  for (const TokenReport& report : tokens) {
    if (text.size() > 1) text += ',';
    text += std::to_string(report.token.token);
  }
  return text + ']';
}

const std::string& CallIds::of(int32_t call_idx) {
  const auto index = static_cast<size_t>(call_idx);
  while (ids_.size() <= index) ids_.push_back(random_id("call_"));
  return ids_[index];
}

std::string delta_json(const model::OutputSegment& segment, CallIds& calls) {
  const std::string call = R"({"tool_calls":[{"index":)" + std::to_string(segment.call_idx);
  switch (segment.kind) {
    case model::OutputKind::reasoning:
      return R"({"reasoning_content":)" + json_string(segment.text) + '}';
    case model::OutputKind::content: return R"({"content":)" + json_string(segment.text) + '}';
    case model::OutputKind::call_begin:
      return call + R"(,"id":)" + json_string(calls.of(segment.call_idx)) +
             R"(,"type":"function","function":{"name":)" + json_string(segment.text) +
             R"(,"arguments":""}}]})";
    case model::OutputKind::call_arguments:
      return call + R"(,"function":{"arguments":)" + json_string(segment.text) + "}}]}";
    case model::OutputKind::call_end: break;
  }
  return {};
}

std::string chunk_json(const AnswerHead& head, const ChunkChoice& choice, std::string_view usage) {
  std::string text =
      head_fields(head, true) + R"(,"choices":[{"index":)" + std::to_string(choice.index);
  if (head.kind == ApiKind::chat) {
    text += R"(,"delta":)" + choice.delta;
  } else {
    text += R"(,"text":)" + json_string(choice.text);
  }
  text += R"(,"logprobs":)" + choice.logprobs;
  if (!choice.token_ids.empty()) text += R"(,"token_ids":)" + choice.token_ids;
  text += R"(,"finish_reason":)" + reason_json(choice.finish_reason) + "}]";
  if (!usage.empty()) text.append(R"(,"usage":)").append(usage);
  return text + '}';
}

std::string usage_chunk_json(const AnswerHead& head, const Usage& usage) {
  return head_fields(head, true) + R"(,"choices":[],"usage":)" + usage_json(usage) + '}';
}

std::string answer_json(const AnswerHead& head, const std::vector<FinishedChoice>& choices,
                        const Usage& usage, const ApiRequest& request,
                        const model::Tokenizer& tokenizer) {
  std::string text = head_fields(head, false) + R"(,"choices":[)";
  for (size_t i = 0; i < choices.size(); ++i) {
    const FinishedChoice& choice = choices[i];
    if (i > 0) text += ',';
    text += R"({"index":)" + std::to_string(i);
    if (head.kind == ApiKind::chat) {
      text += R"(,"message":)" + message_json(choice);
    } else {
      text += R"(,"text":)" + json_string(choice.message.content);
    }
    text += R"(,"logprobs":)" + (request.sampling.logprobs < 0
                                     ? std::string("null")
                                     : logprobs_json(head.kind, choice.tokens, tokenizer));
    if (request.return_token_ids) text += R"(,"token_ids":)" + token_ids_json(choice.tokens);
    text += R"(,"finish_reason":)" + reason_json(choice.finish_reason) + '}';
  }
  return text + R"(],"usage":)" + usage_json(usage) + R"(,"seed":)" + std::to_string(head.seed) +
         '}';
}

std::string model_json(const ModelCard& card, std::string_view id) {
  return R"({"id":)" + json_string(id) + R"(,"object":"model","created":)" +
         std::to_string(card.created) + R"(,"owned_by":"cedar","max_model_len":)" +
         std::to_string(card.context_tokens) + '}';
}

std::string models_json(const ModelCard& card) {
  std::string text = R"({"object":"list","data":[)" + model_json(card, card.name);
  for (const std::string& alias : card.aliases) text += ',' + model_json(card, alias);
  return text + "]}";
}

}  // namespace cedar::gateway
