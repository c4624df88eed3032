#include "model/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "model/utf8.h"

namespace cedar::model {
namespace {

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr uint32_t kFirstSubstitute = 0x100;
constexpr uint32_t kAlphabetEnd = 0x144;  // one past the largest code point of the alphabet

constexpr std::array<uint16_t, 256> make_codes() {
  std::array<uint16_t, 256> codes{};
  uint32_t next = kFirstSubstitute;
  for (uint32_t byte = 0; byte < codes.size(); ++byte) {
    codes[byte] = static_cast<uint16_t>(stands_for_itself(byte) ? byte : next++);
  }
  return codes;
}
constexpr auto kCodes = make_codes();

constexpr int16_t kNoByte = -1;
constexpr std::array<int16_t, kAlphabetEnd> make_bytes() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  for (auto& byte : bytes) byte = kNoByte;
  for (size_t byte = 0; byte < kCodes.size(); ++byte)
    bytes[kCodes[byte]] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr auto kBytes = make_bytes();

}  // namespace

std::string byte_alphabet_char(unsigned char byte) {
  std::string out;
  append_utf8(out, kCodes[byte]);
  return out;
}

std::optional<std::string> byte_alphabet_decode(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Step step = decode_utf8(text);
    if (step.status != Utf8Status::well_formed || step.code >= kBytes.size()) return std::nullopt;
    const int16_t byte = kBytes[step.code];
    if (byte == kNoByte) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    text.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace cedar::model
