#include "core/log.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>

namespace cedar::log {
namespace {

std::atomic<Level> g_level{Level::info};

constexpr std::string_view kNames[] = {"debug", "info", "warn", "error"};

void append_value(std::string& line, const std::string& value) {
  if (!value.empty() && value.find_first_of(" \"=\n\t\\") == std::string::npos) {
    line += value;
    return;
  }
  line += '"';
  for (char c : value) {
    if (c == '\n') {
      line += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') line += '\\';
    line += c;
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
  std::snprintf(stamp + length, sizeof stamp - length, ".%03dZ",
                static_cast<int>(duration_cast<milliseconds>(now.time_since_epoch()).count() % 1000));
  std::string line(stamp);
  line.append(" ").append(kNames[static_cast<size_t>(level)]).append(" [").append(room).append("] ");
  line.append(message);
  for (const Field& field : fields) {
    line.append(" ").append(field.key).append("=");
    append_value(line, field.value);
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);  // one call: lines of threads do not mix
}

}  // namespace cedar::log
