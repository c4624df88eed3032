#include "gateway/prepare.h"

#include <utility>

namespace cedar::gateway {
namespace {

/// Rendering sees the request's tools and format on the first message, possibly one put in front. Complaints
/// must name what the client sent.
Error in_clients_terms(Error error, const ApiRequest& api, bool message_put_in_front) {
  std::string& context = error.context;
  const auto drop_prefix = [&context](std::string_view prefix, std::string_view field) {
    if (context.rfind(std::string(prefix) + std::string(field), 0) == 0)
      context.erase(0, prefix.size());
  };
  if (!api.tools.is_null()) drop_prefix("messages[0].", "tools");
  if (!api.response_format.is_null()) drop_prefix("messages[0].", "response_format");
  constexpr std::string_view kList = "messages[";
  if (message_put_in_front && context.rfind(kList, 0) == 0) {
    const size_t end = context.find(']');
    const int64_t index = std::stoll(context.substr(kList.size(), end - kList.size()));
    if (index > 0) context.replace(kList.size(), end - kList.size(), std::to_string(index - 1));
  }
  return without_content(std::move(error));
}

Result<model::ChatPrompt> render(ApiRequest& api) {
  const size_t sent = api.messages.size();
  const Status added =
      model::add_request_fields(api.messages, api.tools, api.response_format, api.tool_choice);
  if (!added) return in_clients_terms(added.error(), api, api.messages.size() > sent);
  auto prompt = model::render_chat(api.messages, api.chat);
  if (!prompt) return in_clients_terms(prompt.error(), api, api.messages.size() > sent);
  return prompt;
}

Status fill_chat_prompt(PreparedRequest& prepared, const ModelCard& card) {
  ApiRequest& api = prepared.api;
  CEDAR_TRY(const model::ChatPrompt prompt, render(api));
  if (!prompt.images.empty()) {
    return make_error(Errc::unsupported, "messages: this server does not take images");
  }
  prepared.starts_in_reasoning = prompt.starts_in_reasoning;
  if (api.output) {
    api.output->starts_in_reasoning = prompt.starts_in_reasoning;
    prepared.constraint = engine::structured::to_text(*api.output);
    api.output.reset();
  }
  prepared.prompt = model::encode_prompt(*card.tokenizer, prompt);
  api.messages = nullptr;
  api.tools = nullptr;
  return {};
}

void fill_completion_prompt(PreparedRequest& prepared, const ModelCard& card) {
  ApiRequest& api = prepared.api;
  prepared.prompt =
      api.prompt_ids.empty() ? card.tokenizer->encode(api.prompt_text) : std::move(api.prompt_ids);
  if (api.echo) prepared.echo_text = card.tokenizer->decode(prepared.prompt);
  api.prompt_text.clear();
}

Status set_limits(PreparedRequest& prepared, const ModelCard& card) {
  const auto prompt = static_cast<int64_t>(prepared.prompt.size());
  const int64_t room = card.context_tokens - prompt;
  const std::string context = std::to_string(card.context_tokens);
  if (room < 1) {
    const char* field = prepared.api.kind == ApiKind::chat ? "messages: " : "prompt: ";
    return make_error(Errc::context_too_long,
                      field + std::to_string(prompt) +
                          " prompt tokens leave no room in the context of " + context);
  }
  if (!prepared.api.max_tokens) {
    prepared.max_new_tokens = std::min(room, card.default_max_tokens);
    return {};
  }
  if (*prepared.api.max_tokens > room) {
    return make_error(Errc::context_too_long,
                      "max_tokens: " + std::to_string(prompt) + " prompt tokens + " +
                          std::to_string(*prepared.api.max_tokens) +
                          " new ones are more than the context of " + context);
  }
  prepared.max_new_tokens = *prepared.api.max_tokens;
  return {};
}

}  // namespace

engine::DecodeRequest PreparedRequest::sequence(uint32_t index) const {
  engine::DecodeRequest request;
  request.prompt = prompt;
  request.sampling = api.sampling;
  request.sampling.seed = seed;
  request.sampling.choice = index;
  request.max_new_tokens = max_new_tokens;
  request.stop_ids = api.stop_ids;
  request.ignore_eos = api.ignore_eos;
  request.constraint = constraint;
  return request;
}

Result<PreparedRequest> prepare(ApiRequest request, const ModelCard& card, uint64_t fresh_seed) {
  PreparedRequest prepared;
  prepared.api = std::move(request);
  prepared.seed = prepared.api.seed.value_or(fresh_seed);
  if (prepared.api.kind == ApiKind::chat) {
    CEDAR_CHECK_OK(fill_chat_prompt(prepared, card));
  } else {
    fill_completion_prompt(prepared, card);
  }
  CEDAR_CHECK_OK(set_limits(prepared, card));
  return prepared;
}

}  // namespace cedar::gateway
