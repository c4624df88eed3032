#pragma once
// The three splitting regexes of the release's pre-tokenizer, written out by hand over compiled-in
// classes (spec/chat.md 1.2 step 3). A regex engine would need Unicode properties and a
// backtracking matcher; the patterns are few and fixed, and tokenizer.json is refused when it names
// others.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cedar::model {

/// The patterns in their order, as regex text in which CR, LF and the double quote stand for
/// themselves. `canonical_pattern` brings the spellings found in tokenizer files to this form.
std::vector<std::string_view> pretokenizer_patterns();
std::string canonical_pattern(std::string_view regex);

/// Cuts text into the pieces that byte-pair merging works on. Not thread-safe; keeps its buffer
/// between calls, so one splitter per encode call.
class Pretokenizer {
 public:
  /// End offsets of the pieces, ascending; the last one is text.size(). No piece is empty.
  /// REQUIRES: `text` is well-formed UTF-8. The reference stays valid until the next call.
  const std::vector<size_t>& split(std::string_view text);

 private:
  void classify(std::string_view text);
  void split_numbers(size_t begin, size_t end);
  void split_words(size_t begin, size_t end);
  size_t match_word(size_t begin, size_t end) const;
  size_t class_run(size_t begin, size_t end, uint8_t classes) const;
  size_t next_char(size_t i, size_t end) const;

  std::string_view text_;
  std::vector<uint8_t> classes_;  // per byte; continuation bytes carry the class of their character
  std::vector<size_t> ends_;
};

}  // namespace cedar::model
