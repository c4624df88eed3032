// The hand-written splitter against a small backtracking matcher that follows the regexes word by
// word, and the compiled classes against their source.

#include "model/pretokenizer.h"

#include <functional>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "model/unicode_classes.h"
#include "tests/model/golden_text.h"

namespace cedar::model {
namespace {

using Code = char32_t;
using Codes = std::u32string;
using Predicate = std::function<bool(Code)>;

/// One element of a regex with a greedy quantifier.
struct Atom {
  Predicate matches;
  size_t min, max;
};
struct Alternative {
  std::vector<Atom> atoms;
  bool no_blank_start_after = false;  // (?!\S)
};
constexpr size_t kMany = SIZE_MAX;

Predicate has_class(uint8_t classes) {
  return [classes](Code c) { return (char_class(c) & classes) != 0; };
}
Predicate one_of(const std::u32string& set) {
  return [set](Code c) { return set.find(c) != std::u32string::npos; };
}

/// End of the match of atoms[k..] at `at`, trying the longest repetition first.
std::optional<size_t> match_from(const Alternative& alternative, size_t k, const Codes& text,
                                 size_t at) {
  if (k == alternative.atoms.size()) {
    const bool blocked =
        alternative.no_blank_start_after && at < text.size() && !has_class(kWhiteSpace)(text[at]);
    return blocked ? std::nullopt : std::optional(at);
  }
  const Atom& atom = alternative.atoms[k];
  size_t n = 0;
  while (n < atom.max && at + n < text.size() && atom.matches(text[at + n])) ++n;
  for (;; --n) {
    if (n < atom.min) return std::nullopt;
    if (const auto end = match_from(alternative, k + 1, text, at + n)) return end;
    if (n == 0) return std::nullopt;
  }
}

/// Behaviour "Isolated": matches and the gaps between them.
std::vector<Codes> split_by(const std::vector<Alternative>& regex,
                            const std::vector<Codes>& parts) {
  std::vector<Codes> out;
  for (const Codes& text : parts) {
    Codes gap;
    const auto close_gap = [&] {
      if (!gap.empty()) out.push_back(std::exchange(gap, {}));
    };
    for (size_t at = 0; at < text.size();) {
      size_t end = at;
      for (const Alternative& alternative : regex) {
        if (end == at) end = match_from(alternative, 0, text, at).value_or(at);
      }
      if (end > at) {
        close_gap();
        out.push_back(text.substr(at, end - at));
        at = end;
      } else {
        gap += text[at++];
      }
    }
    close_gap();
  }
  return out;
}

std::vector<Codes> reference_split(const Codes& text) {
  const Predicate newline = one_of(U"\r\n");
  const Predicate letter_mark = has_class(kLetter | kMark);
  const Predicate punctuation = has_class(kPunctuationSymbol);
  const Predicate blank = has_class(kWhiteSpace);
  const Predicate cjk = [](Code c) {
    return (c >= U'一' && c <= U'龥') || (c >= 0x3040 && c <= U'ゟ') || (c >= U'゠' && c <= U'ヿ');
  };
  const Predicate ascii_letter = [](Code c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  const Predicate word_prefix = [](Code c) {
    return c != '\r' && c != '\n' && (char_class(c) & (kLetter | kPunctuationSymbol)) == 0;
  };
  std::vector<Codes> parts = {text};
  parts = split_by({{{{has_class(kNumber), 1, 3}}}}, parts);
  parts = split_by({{{{cjk, 1, kMany}}}}, parts);
  return split_by(
      {
          {{{one_of(U"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"), 1, 1}, {ascii_letter, 1, kMany}}},
          {{{word_prefix, 0, 1}, {letter_mark, 1, kMany}}},
          {{{one_of(U" "), 0, 1}, {punctuation, 1, kMany}, {newline, 0, kMany}}},
          {{{blank, 0, kMany}, {newline, 1, kMany}}},
          {{{blank, 1, kMany}}, true},
          {{{blank, 1, kMany}}},
      },
      parts);
}

std::string to_utf8(const Codes& codes) {
  std::string out;
  for (const Code c : codes) append_utf8(out, c);
  return out;
}

std::vector<std::string> split(const std::string& text) {
  Pretokenizer splitter;
  std::vector<std::string> out;
  size_t begin = 0;
  for (const size_t end : splitter.split(text)) {
    out.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return out;
}

std::vector<std::string> expected(const Codes& text) {
  std::vector<std::string> out;
  for (const Codes& part : reference_split(text)) out.push_back(to_utf8(part));
  return out;
}

TEST(UnicodeClasses, EqualTheGoldenTables) {
  const auto golden =
      nlohmann::json::parse(read_file(golden_path("tokenizer/unicode_classes.json")));
  const auto table = [&golden](const char* name) {
    std::vector<bool> member(0x110000);
    for (const auto& range : golden.at(name)) {
      for (uint32_t c = range[0]; c <= range[1]; ++c) member[c] = true;
    }
    return member;
  };
  const auto letters = table("L"), letters_marks = table("LM"), numbers = table("N"),
             punctuation = table("PS"), blanks = table("WS"), cjk = table("CJK");
  for (Code c = 0; c < 0x110000; ++c) {
    const uint8_t cls = char_class(c);
    ASSERT_EQ((cls & kLetter) != 0, letters[c]) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ((cls & (kLetter | kMark)) != 0, letters_marks[c])
        << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ((cls & kNumber) != 0, numbers[c]) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ((cls & kPunctuationSymbol) != 0, punctuation[c])
        << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ((cls & kWhiteSpace) != 0, blanks[c]) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ((cls & kCjkRun) != 0, cjk[c]) << std::hex << static_cast<uint32_t>(c);
    ASSERT_EQ((cls & kNewline) != 0, c == '\r' || c == '\n');
  }
  EXPECT_EQ(char_class(0x110000), 0);
}

TEST(Pretokenizer, CutsAsTheSpecificationSays) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(split(""), Pieces{});
  EXPECT_EQ(split("1234567"), (Pieces{"123", "456", "7"}));
  EXPECT_EQ(split("a  b"), (Pieces{"a", " ", " b"}));
  EXPECT_EQ(split("end  "), (Pieces{"end", "  "}));
  EXPECT_EQ(split("x \r\n\n y"), (Pieces{"x", " \r\n\n", " y"}));
  EXPECT_EQ(split("it's ok!!\n\nB"), (Pieces{"it", "'s", " ok", "!!\n\n", "B"}));
  EXPECT_EQ(split("カナ・中文a"), (Pieces{"カナ", "・", "中文", "a"}));
  EXPECT_EQ(split("\x01\x02"
                  "a\x03"),
            (Pieces{"\x01",
                    "\x02"
                    "a",
                    "\x03"}));
}

TEST(Pretokenizer, EqualsABacktrackingMatcher) {
  // Something of every class, blanks of several lengths, both newlines, marks, astral letters and
  // symbols.
  const Codes alphabet =
      U"  "
      U"\t\n\r\u00A0\u3000\u2028aZé\u0301\u0483中カ・゠〇ー1٣½²Ⅷ.'!_$"
      U"€…😀𝔘\u200B\u0001\uFEFF\U000E0100";
  std::mt19937 random(7);
  for (int round = 0; round < 30000; ++round) {
    Codes text(random() % 14, U' ');
    for (Code& c : text) c = alphabet[random() % alphabet.size()];
    ASSERT_EQ(split(to_utf8(text)), expected(text)) << to_utf8(text);
  }
}

TEST(Pretokenizer, PiecesJoinToTheTextForAnyCodePoints) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    Codes text;
    for (size_t n = random() % 20; n > 0; --n) {
      Code c = random() % (random() % 2 == 0 ? 0x3000 : 0x110000);
      if (c >= 0xD800 && c < 0xE000) c = U' ';
      text += c;
    }
    const std::string bytes = to_utf8(text);
    ASSERT_EQ(split(bytes), expected(text));
  }
}

TEST(Pretokenizer, PatternsAreRecognisedInEitherSpelling) {
  const auto patterns = pretokenizer_patterns();
  ASSERT_EQ(patterns.size(), 3u);
  for (const auto pattern : patterns) EXPECT_EQ(canonical_pattern(pattern), pattern);
  EXPECT_EQ(canonical_pattern(R"([^\r\n\p{L}]\\r\"\)"), "[^\r\n\\p{L}]\\\\r\"\\");
}

}  // namespace
}  // namespace cedar::model
