#include "core/log.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>

namespace cedar::log {
namespace {

std::atomic<Level> g_level{Level::info};

constexpr std::string_view kNames[] = {"debug", "info", "warn", "error"};

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

/// Quoted where blanks, quotes or control characters would make the line ambiguous. Control characters
/// are escaped: a value may come from a client, and must not forge lines or drive the terminal.
void append_value(std::string& line, const std::string& value) {
  const bool plain = !value.empty() && value.find_first_of(" \"=\\") == std::string::npos &&
                     std::none_of(value.begin(), value.end(), is_control);
  if (plain) {
    line += value;
    return;
  }
  line += '"';
  for (char c : value) {
    if (c == '\n') {
      line += "\\n";
    } else if (is_control(c)) {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(c));
      line += code;
    } else {
      if (c == '"' || c == '\\') line += '\\';
      line += c;
    }
  }
  line += '"';
}

}  // namespace

Field::Field(std::string_view k, double v) : key(k) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", v);
  value = text;
}

void set_level(Level level) { g_level.store(level, std::memory_order_relaxed); }

void write(Level level, std::string_view room, std::string_view message,
           std::initializer_list<Field> fields) {
  if (level < g_level.load(std::memory_order_relaxed) || level == Level::off) return;
  using namespace std::chrono;
  const auto now = system_clock::now();
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char stamp[32];
  const size_t length = std::strftime(stamp, sizeof stamp, "%FT%T", &utc);
  std::snprintf(
      stamp + length, sizeof stamp - length, ".%03dZ",
      static_cast<int>(duration_cast<milliseconds>(now.time_since_epoch()).count() % 1000));
  std::string line(stamp);
  line.append(" ")
      .append(kNames[static_cast<size_t>(level)])
      .append(" [")
      .append(room)
      .append("] ");
  line.append(message);
  for (const Field& field : fields) {
    line.append(" ").append(field.key).append("=");
    append_value(line, field.value);
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines of threads do not mix
}

}  // namespace cedar::log
