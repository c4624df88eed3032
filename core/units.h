#pragma once

#include <cstdint>

namespace cedar {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t align_up(int64_t value, int64_t alignment) {
  return ceil_div(value, alignment) * alignment;
}

constexpr int64_t operator""_KiB(unsigned long long v) { return static_cast<int64_t>(v) << 10; }
constexpr int64_t operator""_MiB(unsigned long long v) { return static_cast<int64_t>(v) << 20; }
constexpr int64_t operator""_GiB(unsigned long long v) { return static_cast<int64_t>(v) << 30; }

}  // namespace cedar
