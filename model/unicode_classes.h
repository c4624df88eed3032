#pragma once
// Character classes of the pre-tokenizer's regexes (spec/chat.md 1.2), compiled in. They are the
// classes of the reference tokenizer's regex engine (Unicode 16), not of whatever library this
// machine has.

#include <cstdint>

namespace cedar::model {

/// Bits; letter, mark, number and punctuation exclude one another. A code point may have none
/// (controls, format characters, unassigned).
enum CharClass : uint8_t {
  kLetter = 1,             // \p{L}
  kMark = 2,               // \p{M}
  kNumber = 4,             // \p{N}
  kPunctuationSymbol = 8,  // \p{P} or \p{S}
  kWhiteSpace = 16,        // \s
  kCjkRun = 32,            // the class of the second regex
  kNewline = 64,           // CR, LF
};

/// CharClass bits of a code point; 0 above U+10FFFF.
uint8_t char_class(char32_t code);

}  // namespace cedar::model
