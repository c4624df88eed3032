#pragma once
// The byte alphabet of byte-level BPE: each byte has one printable character, so that vocabulary
// entries are readable text. Printable Latin-1 bytes stand for themselves, the others for U+0100
// onwards, in order.

#include <optional>
#include <string>
#include <string_view>

namespace cedar::model {

/// The character of a byte, in UTF-8.
std::string byte_alphabet_char(unsigned char byte);

/// The bytes that a vocabulary string stands for; nothing when it holds a character outside the
/// alphabet.
std::optional<std::string> byte_alphabet_decode(std::string_view text);

}  // namespace cedar::model
