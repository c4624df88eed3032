#include "model/strict_json.h"

#include <cstddef>
#include <set>
#include <vector>

namespace cedar::model {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr size_t kShortText = 96;

/// Follows the parse and remembers the first thing to refuse.
class Watcher {
 public:
  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth && problem_.empty()) problem_ = "nested too deeply";
    switch (event) {
      case json::parse_event_t::object_start: keys_.emplace_back(); break;
      case json::parse_event_t::object_end: keys_.pop_back(); break;
      case json::parse_event_t::key:
        if (!keys_.back().insert(parsed.get<std::string>()).second && problem_.empty()) {
          problem_ = "key " + short_text(parsed) + " appears twice in one object";
        }
        break;
      default: break;
    }
    return true;
  }
  const std::string& problem() const { return problem_; }

 private:
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  std::string problem_;
};

}  // namespace

Result<json> parse_strict_json(std::string_view text, Errc code) {
  if (text.find('\0') != std::string_view::npos) {
    return make_error(code, "not valid JSON: it contains a NUL byte");
  }
  Watcher watcher;
  try {
    json document =
        json::parse(text, [&watcher](int depth, json::parse_event_t event, json& parsed) {
          return watcher(depth, event, parsed);
        });
    if (!watcher.problem().empty()) return make_error(code, watcher.problem());
    return document;
  } catch (const json::exception& error) {
    return make_error(code, "not valid JSON: " + json_problem(error));
  }
}

std::string json_problem(const json::exception& error) {
  const std::string_view text = error.what();
  const size_t tag = text.rfind("[json.exception.", 0) == 0 ? text.find("] ") : std::string::npos;
  return std::string(tag == std::string::npos ? text : text.substr(tag + 2));
}

std::string short_text(const json& value) {
  // A large value is described, not printed: the message is for a person.
  if (value.is_structured() && value.size() > 64) {
    return (value.is_array() ? "an array of " : "an object of ") + std::to_string(value.size()) +
           " entries";
  }
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kShortText) text.replace(kShortText, std::string::npos, "...");
  return text;
}

}  // namespace cedar::model
