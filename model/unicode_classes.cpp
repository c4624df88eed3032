#include "model/unicode_classes.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace cedar::model {
namespace {

constexpr uint32_t kRuns[] = {
#include "model/unicode_classes_data.inc"
};

constexpr uint8_t search(char32_t code) {
  const auto* run = std::upper_bound(std::begin(kRuns), std::end(kRuns), code << 8 | 0xFF);
  return static_cast<uint8_t>(*std::prev(run) & 0xFF);
}

constexpr std::array<uint8_t, 128> make_ascii_classes() {
  std::array<uint8_t, 128> classes{};
  for (char32_t code = 0; code < classes.size(); ++code) classes[code] = search(code);
  return classes;
}
constexpr std::array<uint8_t, 128> kAscii = make_ascii_classes();

}  // namespace

uint8_t char_class(char32_t code) {
  if (code < kAscii.size()) return kAscii[code];
  return code <= 0x10FFFF ? search(code) : 0;
}

}  // namespace cedar::model
