#include "apps/api_key.h"

#include <algorithm>
#include <cstdlib>

#include "apps/text_input.h"

namespace cedar::apps {
namespace {

constexpr const char* kVariable = "CEDAR_API_KEY";

/// What a header carries unharmed.
bool is_visible(const std::string& key) {
  return std::all_of(key.begin(), key.end(), [](unsigned char c) { return c > ' ' && c < 0x7F; });
}

Error bad_key(const std::string& where) {
  return make_error(Errc::invalid_argument,
                    where + " must hold an API key: visible ASCII characters without spaces");
}

}  // namespace

Result<std::string> read_api_key(const std::string& file) {
  if (file.empty()) {
    const char* value = std::getenv(kVariable);
    const std::string key = value == nullptr ? "" : value;
    if (!is_visible(key)) return bad_key(kVariable);
    return key;
  }
  CEDAR_TRY(std::string key, read_text(file));
  key.erase(std::min(key.find('\n'), key.size()));
  if (!key.empty() && key.back() == '\r') key.pop_back();
  if (key.empty() || !is_visible(key)) return bad_key("--api-key-file: " + file);
  return key;
}

}  // namespace cedar::apps
