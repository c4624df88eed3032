#pragma once
// Small damage to texts, the same for the same seed.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>

namespace cedar::gateway {

inline constexpr const char* kFragments[] = {"null",
                                             "true",
                                             "-1",
                                             "1e308",
                                             "99999999999999999999",
                                             "[]",
                                             "{}",
                                             "\"\"",
                                             "\\ud800",
                                             "\\u0000",
                                             "\xF0\x9F",
                                             "\"role\"",
                                             "\"messages\"",
                                             ",",
                                             ":",
                                             "[[[[[[[[",
                                             "\"content\"",
                                             "0.0000001",
                                             "\"<｜deepseek_image｜>\""};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string mutate(std::string text) {
    const size_t edits = 1 + below(4);
    for (size_t i = 0; i < edits; ++i) edit(text);
    return text;
  }

  size_t below(size_t limit) { return random_() % limit; }

 private:
  void edit(std::string& text) {
    if (text.empty()) text = "{}";
    const size_t at = below(text.size());
    const size_t length = std::min(text.size() - at, 1 + below(20));
    switch (below(5)) {
      case 0: text[at] = static_cast<char>(below(256)); return;
      case 1: text.erase(at, length); return;
      case 2: text.insert(at, kFragments[below(std::size(kFragments))]); return;
      case 3: text.insert(at, text.substr(below(text.size()), length)); return;
      default: text.replace(at, length, kFragments[below(std::size(kFragments))]); return;
    }
  }
  std::mt19937_64 random_;
};

}  // namespace cedar::gateway
