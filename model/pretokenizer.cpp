#include "model/pretokenizer.h"

#include "model/unicode_classes.h"
#include "model/utf8.h"

namespace cedar::model {
namespace {

constexpr std::string_view kNumberPattern = R"(\p{N}{1,3})";
constexpr std::string_view kCjkPattern = "[一-龥぀-ゟ゠-ヿ]+";
constexpr std::string_view kWordPattern =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+"
    "|\\s+(?!\\S)"
    "|\\s+";

constexpr uint8_t kLetterOrMark = kLetter | kMark;
/// What the one optional character in front of a word may not be.
constexpr uint8_t kNoWordPrefix = kNewline | kLetter | kPunctuationSymbol;

bool is_ascii_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

}  // namespace

std::vector<std::string_view> pretokenizer_patterns() {
  return {kNumberPattern, kCjkPattern, kWordPattern};
}

std::string canonical_pattern(std::string_view regex) {
  std::string out;
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] != '\\' || i + 1 == regex.size()) {
      out += regex[i];
      continue;
    }
    const char escaped = regex[++i];
    switch (escaped) {
      case 'r': out += '\r'; break;
      case 'n': out += '\n'; break;
      case '"': out += '"'; break;
      default: out += '\\'; out += escaped;
    }
  }
  return out;
}

const std::vector<size_t>& Pretokenizer::split(std::string_view text) {
  text_ = text;
  ends_.clear();
  classify(text);
  // The first two regexes cut the text into number runs, CJK runs and the rest; the third one then
  // sees each part alone, so its look-ahead stops at the part's end.
  constexpr uint8_t kZones = kNumber | kCjkRun;
  size_t begin = 0;
  while (begin < text.size()) {
    const uint8_t zone = classes_[begin] & kZones;
    size_t end = begin + 1;
    while (end < text.size() && (classes_[end] & kZones) == zone) ++end;
    if (zone == kNumber) split_numbers(begin, end);
    else split_words(begin, end);
    begin = end;
  }
  return ends_;
}

void Pretokenizer::classify(std::string_view text) {
  classes_.resize(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text.substr(i));
    const uint8_t cls = char_class(step.code);
    for (const size_t end = i + step.length; i < end; ++i) classes_[i] = cls;
  }
}

size_t Pretokenizer::next_char(size_t i, size_t end) const {
  do ++i;
  while (i < end && is_continuation(text_[i]));
  return i;
}

size_t Pretokenizer::class_run(size_t begin, size_t end, uint8_t classes) const {
  while (begin < end && (classes_[begin] & classes) != 0) ++begin;
  return begin;
}

void Pretokenizer::split_numbers(size_t begin, size_t end) {
  while (begin < end) {
    for (int digits = 0; digits < 3 && begin < end; ++digits) begin = next_char(begin, end);
    ends_.push_back(begin);
  }
}

void Pretokenizer::split_words(size_t begin, size_t end) {
  // Start of a stretch that no alternative matches; such a gap is a piece of its own.
  size_t piece = begin;
  for (size_t i = begin; i < end;) {
    const size_t match_end = match_word(i, end);
    if (match_end == i) {
      i = next_char(i, end);
      continue;
    }
    if (piece < i) ends_.push_back(i);
    ends_.push_back(match_end);
    piece = i = match_end;
  }
  if (piece < end) ends_.push_back(end);
}

/// End of the third regex's match at `i`, or `i` when none of its alternatives matches there.
/// The alternatives are tried in the pattern's order.
size_t Pretokenizer::match_word(size_t i, size_t end) const {
  const uint8_t cls = classes_[i];
  const auto byte = static_cast<uint8_t>(text_[i]);

  // All ASCII punctuation and symbols are in the first alternative's list.
  if (byte < 0x80 && (cls & kPunctuationSymbol) != 0 && i + 1 < end &&
      is_ascii_letter(text_[i + 1])) {
    size_t j = i + 1;
    while (j < end && is_ascii_letter(text_[j])) ++j;
    return j;
  }

  // A mark can be the optional prefix as well as part of the word; both readings end at the same
  // place.
  if ((cls & kLetterOrMark) != 0) return class_run(i, end, kLetterOrMark);
  if ((cls & kNoWordPrefix) == 0) {
    const size_t word = next_char(i, end);
    if (word < end && (classes_[word] & kLetterOrMark) != 0) {
      return class_run(word, end, kLetterOrMark);
    }
  }

  const size_t mark = text_[i] == ' ' ? i + 1 : i;
  if (mark < end && (classes_[mark] & kPunctuationSymbol) != 0) {
    return class_run(class_run(mark, end, kPunctuationSymbol), end, kNewline);
  }

  if ((cls & kWhiteSpace) == 0) return i;
  const size_t run = class_run(i, end, kWhiteSpace);
  for (size_t j = run; j > i; --j) {
    if ((classes_[j - 1] & kNewline) != 0) return j;
  }
  if (run == end) return run;
  size_t last = run - 1;
  while (is_continuation(text_[last])) --last;
  return last > i ? last : run;
}

}  // namespace cedar::model
