#pragma once
// Requests of the OpenAI dialect, typed and checked (spec/api.md sections 2 and 3). Unknown fields are
// ignored; a wrong type or range is refused with the field's name and what it may be.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampling.h"
#include "engine/structured/output_rules.h"
#include "gateway/field_reader.h"
#include "gateway/model_card.h"
#include "model/chat_format.h"

namespace cedar::gateway {

enum class ApiKind : uint8_t { chat, completion };

constexpr int64_t kMaxChoices = 16;
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxTools = 128;
constexpr int64_t kMaxLogprobs = 20;

struct ApiRequest {
  ApiKind kind = ApiKind::chat;

  // chat
  Json messages;
  Json tools, response_format, tool_choice;  // null where absent
  model::ChatOptions chat;
  /// What those ask of the output; none where it is free. `starts_in_reasoning` is set by prepare().
  std::optional<engine::structured::OutputRules> output;
  // completion: text, or ids
  std::string prompt_text;
  std::vector<TokenId> prompt_ids;
  bool echo = false;

  engine::SamplingParams sampling;  // seed and choice are set by prepare()
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_ids;
  bool ignore_eos = false;
  int64_t choices = 1;
  int32_t priority = 0;
  std::string cache_salt;
  std::string request_id;

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
};

/// Errors: invalid_argument ("field: problem"), not_found (unknown model), unsupported.
Result<ApiRequest> read_chat_request(Json body, const ModelCard& card);
Result<ApiRequest> read_completion_request(const Json& body, const ModelCard& card);

/// JSON text to an object. Errors: invalid_argument (not JSON, not UTF-8, too deep, no object).
Result<Json> read_body(std::string_view text);

}  // namespace cedar::gateway
