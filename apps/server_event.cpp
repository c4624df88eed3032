#include "apps/server_event.h"

#include <optional>

#include <nlohmann/json.hpp>

#include "model/strict_json.h"

namespace cedar::apps {
namespace {

using Json = nlohmann::json;

Error broken(const std::string& problem) {
  return make_error(Errc::unavailable, "the server breaks the protocol: " + problem);
}

const Json* find(const Json& object, const char* name) {
  const auto field = object.find(name);
  return field == object.end() || field->is_null() ? nullptr : &*field;
}

Result<std::string> text_of(const Json& object, const char* name, const std::string& where) {
  const Json* field = find(object, name);
  if (field != nullptr && field->is_string()) return field->get<std::string>();
  return broken(where + ": " + name + " must be a string");
}

/// The message of the error object that every error and every failure carries.
Result<std::string> error_text(const Json& event, const std::string& where) {
  const Json* error = find(event, "error");
  if (error == nullptr || !error->is_object()) return broken(where + ": error must be an object");
  return text_of(*error, "message", where + ": error");
}

Result<int64_t> count_of(const Json& object, const char* name, const std::string& where) {
  const Json* field = find(object, name);
  if (field != nullptr && field->is_number_unsigned()) {
    const auto count = field->get<uint64_t>();
    if (count <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(count);
  }
  return broken(where + ": " + name + " must be a count");
}

Status read_done(const Json& event, const std::string& where, ServerEvent& out) {
  CEDAR_TRY(const std::string name, text_of(event, "status", where));
  std::optional<ResponseStatus> status;
  for (const auto known : {ResponseStatus::completed, ResponseStatus::incomplete,
                           ResponseStatus::cancelled, ResponseStatus::failed}) {
    if (name == to_string(known)) status = known;
  }
  if (!status) return broken(where + ": unknown status");
  out.status = *status;
  if (*status == ResponseStatus::failed) {
    CEDAR_TRY(out.text, error_text(event, where));
    return {};
  }
  const Json* usage = find(event, "usage");
  if (usage == nullptr || !usage->is_object()) return broken(where + ": usage must be an object");
  CEDAR_TRY(out.prompt_tokens, count_of(*usage, "prompt_tokens", where + ": usage"));
  CEDAR_TRY(out.completion_tokens, count_of(*usage, "completion_tokens", where + ": usage"));
  return {};
}

/// A server that names no limits is as good.
Status read_session(const Json& event, const std::string& where, ServerEvent& out) {
  const Json* limits = find(event, "limits");
  if (limits == nullptr) return {};
  if (!limits->is_object()) return broken(where + ": limits must be an object");
  if (find(*limits, "max_message_bytes") == nullptr) return {};
  CEDAR_TRY(out.max_message_bytes, count_of(*limits, "max_message_bytes", where + ": limits"));
  return {};
}

ServerEventKind kind_of(std::string_view type) {
  if (type == "session.created") return ServerEventKind::session;
  if (type == "response.created") return ServerEventKind::created;
  if (type == "response.in_progress") return ServerEventKind::prompt_read;
  if (type == "response.content.delta") return ServerEventKind::content;
  if (type == "response.reasoning.delta") return ServerEventKind::reasoning;
  if (type == "error") return ServerEventKind::error;
  if (type == "response.done") return ServerEventKind::done;
  return ServerEventKind::other;
}

}  // namespace

std::string_view to_string(ResponseStatus status) {
  switch (status) {
    case ResponseStatus::completed: return "completed";
    case ResponseStatus::incomplete: return "incomplete";
    case ResponseStatus::cancelled: return "cancelled";
    case ResponseStatus::failed: return "failed";
  }
  return {};
}

Result<ServerEvent> read_server_event(std::string_view frame) {
  const auto event = model::parse_strict_json(frame, Errc::unavailable);
  if (!event) return broken("a message is " + event.error().context);
  if (!event->is_object()) return broken("a message is no JSON object");
  CEDAR_TRY(const std::string type, text_of(*event, "type", "a message"));
  ServerEvent out;
  out.kind = kind_of(type);
  if (find(*event, "response_id") != nullptr || out.kind == ServerEventKind::created) {
    CEDAR_TRY(out.response_id, text_of(*event, "response_id", type));
  }
  switch (out.kind) {
    case ServerEventKind::content:
    case ServerEventKind::reasoning: {
      CEDAR_TRY(out.text, text_of(*event, "delta", type));
      break;
    }
    case ServerEventKind::error: {
      CEDAR_TRY(out.text, error_text(*event, type));
      if (find(*event, "retry_after_s") == nullptr) break;
      CEDAR_TRY(const int64_t wait_s, count_of(*event, "retry_after_s", type));
      out.text += " (try again in " + std::to_string(wait_s) + " s)";
      break;
    }
    case ServerEventKind::done: CEDAR_CHECK_OK(read_done(*event, type, out)); break;
    case ServerEventKind::session: CEDAR_CHECK_OK(read_session(*event, type, out)); break;
    default: break;
  }
  return out;
}

}  // namespace cedar::apps
