#include "engine/structured/forbidden_text.h"

#include <algorithm>
#include <string_view>

namespace cedar::engine::structured {

ForbiddenText::ForbiddenText(const std::vector<std::string>& markers) {
  // One state per beginning of a marker; a byte leads to the longest end of the text that is one.
  std::vector<std::string> prefixes{""};
  for (const std::string& marker : markers) {
    for (size_t length = 1; length < marker.size(); ++length) {
      const std::string prefix = marker.substr(0, length);
      if (std::find(prefixes.begin(), prefixes.end(), prefix) == prefixes.end()) {
        prefixes.push_back(prefix);
      }
    }
  }
  for (const std::string& prefix : prefixes) {
    auto& row = rows_.emplace_back();
    for (int byte = 0; byte < 256; ++byte) {
      const std::string text = prefix + static_cast<char>(byte);
      int16_t target = 0;
      for (size_t from = 0; from < text.size() && target == 0; ++from) {
        const std::string suffix = text.substr(from);
        if (std::find(markers.begin(), markers.end(), suffix) != markers.end()) {
          target = kForbidden;
        } else if (const auto found = std::find(prefixes.begin(), prefixes.end(), suffix);
                   found != prefixes.end()) {
          target = static_cast<int16_t>(found - prefixes.begin());
        }
      }
      row[static_cast<size_t>(byte)] = target;
    }
  }
}

bool ForbiddenText::contains(std::string_view text) const {
  int16_t state = 0;
  for (const char c : text) {
    state = next(state, static_cast<uint8_t>(c));
    if (state == kForbidden) return true;
  }
  return false;
}

}  // namespace cedar::engine::structured
