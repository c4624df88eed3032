#pragma once
// UTF-8 by the rules of the Unicode standard: no overlong forms, no surrogates, nothing above
// U+10FFFF. An ill-formed stretch is replaced per maximal subpart, which is what WHATWG decoders,
// Rust's lossy conversion and Python's "replace" do (spec/chat.md 1.3).

#include <cstdint>
#include <string>
#include <string_view>

namespace cedar::model {

enum class Utf8Status : uint8_t {
  well_formed,
  ill_formed,  // `length` bytes form a maximal ill-formed part
  incomplete,  // the text ends inside a sequence that more bytes could complete
};

struct Utf8Step {
  char32_t code = 0;    // of a well-formed character only
  uint32_t length = 0;  // bytes, 1..4
  Utf8Status status = Utf8Status::well_formed;
};

/// The first character of `text`. REQUIRES: text is not empty.
Utf8Step decode_utf8(std::string_view text);

/// REQUIRES: `code` is a Unicode scalar value.
void append_utf8(std::string& out, char32_t code);

bool is_utf8(std::string_view text);

/// Replaces each maximal ill-formed part by U+FFFD.
std::string sanitize_utf8(std::string_view bytes);

/// Bytes in, well-formed text out: a character that is cut at the end of one piece waits for the
/// next one. At most three bytes are held back. The outputs join to sanitize_utf8 of the joined
/// inputs.
class Utf8Stream {
 public:
  /// The text that is settled once `bytes` are known.
  std::string push(std::string_view bytes);
  /// The end of the stream: what was held back becomes U+FFFD.
  std::string flush();

 private:
  std::string pending_;
};

}  // namespace cedar::model
