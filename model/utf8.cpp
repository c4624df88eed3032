#include "model/utf8.h"

#include <utility>

namespace cedar::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

struct LeadByte {
  uint32_t length = 0;  // 0: not a lead byte
  uint8_t second_min = 0x80, second_max = 0xBF;
};

/// Length and the bounds of the second byte, which exclude overlong forms, surrogates and codes
/// above the limit (table 3-7 of the Unicode standard).
LeadByte lead_byte(uint8_t b) {
  if (b < 0x80) return {1};
  if (b < 0xC2) return {0};
  if (b < 0xE0) return {2};
  if (b < 0xF0) {
    if (b == 0xE0) return {3, 0xA0, 0xBF};
    if (b == 0xED) return {3, 0x80, 0x9F};
    return {3};
  }
  if (b == 0xF0) return {4, 0x90, 0xBF};
  if (b < 0xF4) return {4};
  if (b == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

/// The first two bytes of an encoded surrogate. They are ill-formed already, but Python's
/// incremental decoder waits for the third byte, and the golden stream pieces were made with it.
bool is_surrogate_prefix(std::string_view bytes) {
  return bytes.size() == 2 && byte_at(bytes, 0) == 0xED && byte_at(bytes, 1) >= 0xA0 &&
         byte_at(bytes, 1) <= 0xBF;
}

/// Appends the settled part of `bytes` and returns how many bytes that were. The rest, at most
/// three bytes, is the prefix of a character; with `more_may_come` also that of a surrogate.
size_t append_settled(std::string& out, std::string_view bytes, bool more_may_come) {
  size_t i = 0;
  while (i < bytes.size()) {
    const size_t start = i;
    while (i < bytes.size() && byte_at(bytes, i) < 0x80) ++i;
    out.append(bytes, start, i - start);
    if (i == bytes.size()) break;
    const Utf8Step step = decode_utf8(bytes.substr(i));
    if (step.status == Utf8Status::incomplete) break;
    if (more_may_come && is_surrogate_prefix(bytes.substr(i))) break;
    out.append(step.status == Utf8Status::well_formed ? bytes.substr(i, step.length)
                                                      : kReplacement);
    i += step.length;
  }
  return i;
}

}  // namespace

Utf8Step decode_utf8(std::string_view text) {
  const uint8_t first = byte_at(text, 0);
  const LeadByte lead = lead_byte(first);
  if (lead.length == 1) return {first, 1, Utf8Status::well_formed};
  if (lead.length == 0) return {0, 1, Utf8Status::ill_formed};
  char32_t code = first & (0x7Fu >> lead.length);
  for (uint32_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {0, i, Utf8Status::incomplete};
    const uint8_t b = byte_at(text, i);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (b < min || b > max) return {0, i, Utf8Status::ill_formed};
    code = code << 6 | (b & 0x3Fu);
  }
  return {code, lead.length, Utf8Status::well_formed};
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

bool is_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (byte_at(text, i) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Step step = decode_utf8(text.substr(i));
    if (step.status != Utf8Status::well_formed) return false;
    i += step.length;
  }
  return true;
}

std::string sanitize_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (append_settled(out, bytes, false) < bytes.size()) out += kReplacement;
  return out;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  const size_t settled = append_settled(out, pending_, true);
  pending_.erase(0, settled);
  return out;
}

std::string Utf8Stream::flush() { return sanitize_utf8(std::exchange(pending_, {})); }

}  // namespace cedar::model
