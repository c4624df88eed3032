#include "apps/terminal_text.h"

#include <cstdio>

namespace cedar::apps {
namespace {

/// Frames that were sent one by one, but arrived together, are read within less.
constexpr double kShortestSeconds = 0.002;

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      out += "\xE2\x90";  // U+2400 and the code; U+2421 is delete
      out += static_cast<char>(byte == 0x7F ? 0xA1 : 0x80 + byte);
    } else if (byte == 0xC2 && i + 1 < text.size() &&
               static_cast<unsigned char>(text[i + 1]) < 0xA0) {
      out += "\xEF\xBF\xBD";
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string rate_text(int64_t tokens, double seconds) {
  if (tokens < 2 || !(seconds >= kShortestSeconds)) return {};
  char text[48];
  std::snprintf(text, sizeof text, ", %.1f tokens/s", static_cast<double>(tokens - 1) / seconds);
  return text;
}

}  // namespace cedar::apps
