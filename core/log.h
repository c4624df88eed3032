#pragma once
// One event, one line on stderr: time, level, room, message, key=value fields. Thread-safe.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace cedar::log {

enum class Level : uint8_t { debug, info, warn, error, off };

/// Value of one field, already text. Strings with blanks or quotes are quoted on output.
struct Field {
  std::string_view key;
  std::string value;

  Field(std::string_view k, std::string_view v) : key(k), value(v) {}
  Field(std::string_view k, const std::string& v) : key(k), value(v) {}
  Field(std::string_view k, const char* v) : key(k), value(v) {}
  Field(std::string_view k, bool v) : key(k), value(v ? "true" : "false") {}
  Field(std::string_view k, double v);
  Field(std::string_view k, int64_t v) : key(k), value(std::to_string(v)) {}
  Field(std::string_view k, int v) : key(k), value(std::to_string(v)) {}
  Field(std::string_view k, uint64_t v) : key(k), value(std::to_string(v)) {}
};

/// Messages below `level` are dropped. Process-wide; set once by the program before threads start.
void set_level(Level level);

void write(Level level, std::string_view room, std::string_view message,
           std::initializer_list<Field> fields = {});

inline void debug(std::string_view room, std::string_view message,
                  std::initializer_list<Field> fields = {}) {
  write(Level::debug, room, message, fields);
}
inline void info(std::string_view room, std::string_view message,
                 std::initializer_list<Field> fields = {}) {
  write(Level::info, room, message, fields);
}
inline void warn(std::string_view room, std::string_view message,
                 std::initializer_list<Field> fields = {}) {
  write(Level::warn, room, message, fields);
}
inline void error(std::string_view room, std::string_view message,
                  std::initializer_list<Field> fields = {}) {
  write(Level::error, room, message, fields);
}

}  // namespace cedar::log
