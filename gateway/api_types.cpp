#include "gateway/api_types.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "gateway/output_request.h"
#include "model/json_python.h"

namespace cedar::gateway {
namespace {

constexpr size_t kMaxIdBytes = 256;

void read_model(FieldReader& fields, const ModelCard& card) {
  std::string name;
  fields.text("model", 1024, name);
  if (!card.answers_to(name)) {
    fields.absorb(
        make_error(Errc::not_found, "model: this server does not serve the requested model"));
  }
}

void read_penalties(FieldReader& fields, engine::SamplingParams& sampling) {
  fields.number("presence_penalty", -2, 2, sampling.presence_penalty);
  fields.number("frequency_penalty", -2, 2, sampling.frequency_penalty);
  // Far above any use; keeps the scaled logits finite.
  fields.number("repetition_penalty", 0, 1000, sampling.repetition_penalty, true);
}

void read_logit_bias(FieldReader& fields, int64_t vocab_size, engine::SamplingParams& sampling) {
  const Json* biases = fields.object("logit_bias");
  if (biases == nullptr) return;
  for (const auto& [key, value] : biases->items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= vocab_size) {
      return fields.complain("logit_bias",
                             "keys must be token ids in [0, " + std::to_string(vocab_size) + ")");
    }
    const double bias = value.is_number() ? value.get<double>() : 1000.0;
    if (!(bias >= -100 && bias <= 100)) {
      return fields.complain("logit_bias",
                             "values must be numbers in [-100, 100], got " + describe(value));
    }
    sampling.logit_bias.emplace_back(static_cast<TokenId>(id), static_cast<float>(bias));
  }
}

void read_seed(FieldReader& fields, std::optional<uint64_t>& seed) {
  const Json* field = fields.find("seed");
  if (field == nullptr) return;
  if (field->is_number_unsigned()) {
    seed = field->get<uint64_t>();
  } else if (field->is_number_integer()) {
    seed = static_cast<uint64_t>(field->get<int64_t>());
  } else {
    fields.complain("seed", "must be a 64-bit integer, got " + describe(*field));
  }
}

void read_max_tokens(FieldReader& fields, int64_t context_tokens,
                     std::optional<int64_t>& max_tokens) {
  int64_t value = 0;
  fields.integer("max_tokens", 1, context_tokens, value);
  // The newer name wins when both are given.
  fields.integer("max_completion_tokens", 1, context_tokens, value);
  if (value > 0) max_tokens = value;
}

void read_sampling(FieldReader& fields, const ModelCard& card, ApiRequest& request) {
  engine::SamplingParams& sampling = request.sampling;
  fields.number("temperature", 0, 2, sampling.temperature);
  fields.number("top_p", 0, 1, sampling.top_p, true);
  int64_t top_k = 0;
  fields.integer("top_k", -1, card.vocab_size, top_k);
  sampling.top_k = static_cast<int32_t>(top_k);
  fields.number("min_p", 0, 1, sampling.min_p);
  read_penalties(fields, sampling);
  read_logit_bias(fields, card.vocab_size, sampling);
  read_seed(fields, request.seed);
  read_max_tokens(fields, card.context_tokens, request.max_tokens);
  int64_t min_tokens = 0;
  fields.integer("min_tokens", 0, INT32_MAX, min_tokens);
  sampling.min_tokens = static_cast<int32_t>(min_tokens);
  fields.texts("stop", kMaxStopStrings, request.stop);
  fields.token_ids("stop_token_ids", card.vocab_size, request.stop_ids);
  fields.boolean("ignore_eos", request.ignore_eos);
  fields.integer("n", 1, kMaxChoices, request.choices);
  if (request.choices > 1 && sampling.temperature < 1e-5F) {
    fields.complain("n", "must be 1 with temperature 0, which gives equal choices");
  }
}

void read_delivery(FieldReader& fields, ApiRequest& request) {
  fields.boolean("stream", request.stream);
  if (const Json* options = fields.object("stream_options")) {
    FieldReader nested(*options, "stream_options.");
    nested.boolean("include_usage", request.include_usage);
    nested.boolean("continuous_usage_stats", request.continuous_usage);
    fields.absorb(nested.status());
  }
  fields.boolean("return_token_ids", request.return_token_ids);
  int64_t priority = 0;
  fields.integer("priority", INT32_MIN, INT32_MAX, priority);
  request.priority = static_cast<int32_t>(priority);
  fields.text("cache_salt", kMaxIdBytes, request.cache_salt);
  fields.text("request_id", kMaxIdBytes, request.request_id);
}

void read_chat_logprobs(FieldReader& fields, engine::SamplingParams& sampling) {
  bool wanted = false;
  fields.boolean("logprobs", wanted);
  int64_t top = 0;
  fields.integer("top_logprobs", 0, kMaxLogprobs, top);
  if (fields.find("top_logprobs") != nullptr && top > 0 && !wanted) {
    fields.complain("top_logprobs", "needs logprobs: true");
  }
  if (wanted) sampling.logprobs = static_cast<int32_t>(top);
}

void read_effort(FieldReader& fields, const char* name, model::ChatOptions& chat) {
  const Json* effort = fields.find(name);
  if (effort == nullptr) return;
  if (effort->is_string()) {
    const auto choice = model::parse_api_effort(effort->get_ref<const std::string&>());
    if (!choice) return fields.absorb(choice.error());
    chat.thinking = choice->thinking;
    chat.effort = choice->effort;
  } else {
    const auto value = model::parse_effort(*effort);
    if (!value) return fields.absorb(value.error());
    chat.thinking = true;
    chat.effort = *value;
  }
}

/// What is said last here wins: effort, template arguments, then the explicit switch.
void read_thinking(FieldReader& fields, model::ChatOptions& chat) {
  read_effort(fields, "reasoning_effort", chat);
  if (const Json* arguments = fields.object("chat_template_kwargs")) {
    FieldReader nested(*arguments, "chat_template_kwargs.");
    read_effort(nested, "reasoning_effort", chat);
    nested.boolean("enable_thinking", chat.thinking);
    nested.boolean("thinking", chat.thinking);
    nested.boolean("drop_thinking", chat.drop_thinking);
    fields.absorb(nested.status());
  }
  if (const Json* thinking = fields.object("thinking")) {
    FieldReader nested(*thinking, "thinking.");
    std::string type;
    nested.text("type", 64, type);
    if (type == "enabled" || type == "disabled") {
      chat.thinking = type == "enabled";
    } else {
      nested.complain("type", "must be enabled or disabled");
    }
    fields.absorb(nested.status());
  }
}

void read_prompt(FieldReader& fields, const ModelCard& card, ApiRequest& request) {
  const Json* prompt = fields.find("prompt");
  if (prompt == nullptr) return fields.complain("prompt", "is missing");
  if (prompt->is_array() && prompt->size() == 1 &&
      (prompt->front().is_string() || prompt->front().is_array())) {
    prompt = &prompt->front();  // a list of one prompt
  }
  if (prompt->is_string()) {
    request.prompt_text = prompt->get<std::string>();
    if (request.prompt_text.empty()) fields.complain("prompt", "must not be empty");
    return;
  }
  if (!prompt->is_array()) {
    return fields.complain("prompt",
                           "must be a string or a list of token ids, got " + describe(*prompt));
  }
  if (!prompt->empty() && (prompt->front().is_string() || prompt->front().is_array())) {
    return fields.absorb(make_error(Errc::unsupported, "prompt: one prompt per request, got " +
                                                           std::to_string(prompt->size())));
  }
  fields.token_ids("prompt", *prompt, card.vocab_size, request.prompt_ids);
  if (prompt->empty()) fields.complain("prompt", "must not be empty");
}

}  // namespace

Result<Json> read_body(std::string_view text) {
  auto read = model::read_python_json(text);
  if (!read) {
    // The parser quotes what it read last, which is the client's text and may be no UTF-8.
    Error error = std::move(read.error());
    error.context.resize(std::min(error.context.size(), error.context.find("; last read")));
    return error;
  }
  Json body = std::move(*read);
  if (!body.is_object()) {
    return make_error(Errc::invalid_argument,
                      "the body must be a JSON object, got " + describe(body));
  }
  return body;
}

Result<ApiRequest> read_chat_request(Json body, const ModelCard& card) {
  ApiRequest request;
  request.kind = ApiKind::chat;
  request.chat.thinking = card.default_thinking;
  FieldReader fields(body);
  const Json* messages = fields.find("messages");
  if (messages == nullptr) {
    fields.complain("messages", "is missing");
  } else if (!messages->is_array()) {
    fields.complain("messages", "must be a list, got " + describe(*messages));
  } else if (messages->empty()) {
    fields.complain("messages", "must not be empty");
  }
  read_model(fields, card);
  read_sampling(fields, card, request);
  read_chat_logprobs(fields, request.sampling);
  read_thinking(fields, request.chat);
  read_output_fields(fields, request);
  read_delivery(fields, request);
  CEDAR_CHECK_OK(fields.status());
  request.messages = std::move(body["messages"]);
  return request;
}

Result<ApiRequest> read_completion_request(const Json& body, const ModelCard& card) {
  ApiRequest request;
  request.kind = ApiKind::completion;
  FieldReader fields(body);
  read_prompt(fields, card, request);
  read_model(fields, card);
  read_sampling(fields, card, request);
  int64_t logprobs = -1;
  fields.integer("logprobs", 0, kMaxLogprobs, logprobs);
  request.sampling.logprobs = static_cast<int32_t>(logprobs);
  fields.boolean("echo", request.echo);
  int64_t best_of = 1;
  fields.integer("best_of", 1, kMaxChoices, best_of);
  if (best_of > request.choices) {
    fields.absorb(make_error(Errc::unsupported, "best_of: must not exceed n"));
  }
  if (fields.find("suffix") != nullptr) {
    fields.absorb(make_error(Errc::unsupported, "suffix: filling in the middle is not supported"));
  }
  read_delivery(fields, request);
  CEDAR_CHECK_OK(fields.status());
  return request;
}

}  // namespace cedar::gateway
