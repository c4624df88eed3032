#include "model/utf8.h"

#include <random>

#include <gtest/gtest.h>

namespace cedar::model {
namespace {

const std::string kMark = "\xEF\xBF\xBD";

TEST(Utf8, ReplacesEachMaximalIllFormedPartOnce) {
  EXPECT_EQ(sanitize_utf8("a\x80\xC2"), "a" + kMark + kMark);
  EXPECT_EQ(sanitize_utf8("\xC0\xAF"), kMark + kMark);                          // overlong
  EXPECT_EQ(sanitize_utf8("\xED\xA0\x80"), kMark + kMark + kMark);              // surrogate
  EXPECT_EQ(sanitize_utf8("\xF4\x90\x80\x80"), kMark + kMark + kMark + kMark);  // above U+10FFFF
  EXPECT_EQ(sanitize_utf8("\xE4\xBD\xA0\xE5\xA5"), "你" + kMark);  // cut at the end: one mark
  EXPECT_EQ(sanitize_utf8("\xF0\x9F\x98"
                          "a"),
            kMark + "a");  // cut inside: one mark
  EXPECT_EQ(sanitize_utf8("\xE0\x80\x80"), kMark + kMark + kMark);
  EXPECT_EQ(sanitize_utf8(std::string_view("\0\x7F", 2)), std::string("\0\x7F", 2));
}

TEST(Utf8, EncodesWhatItDecodes) {
  for (char32_t code :
       {0x00u, 0x7Fu, 0x80u, 0x7FFu, 0x800u, 0xD7FFu, 0xE000u, 0xFFFFu, 0x10000u, 0x10FFFFu}) {
    std::string text;
    append_utf8(text, code);
    const Utf8Step step = decode_utf8(text);
    EXPECT_EQ(step.status, Utf8Status::well_formed);
    EXPECT_EQ(step.code, code);
    EXPECT_EQ(step.length, text.size());
    EXPECT_TRUE(is_utf8(text));
  }
}

TEST(Utf8, StreamHoldsBackAtMostThreeBytes) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("x\xF0\x9F\x98"), "x");
  EXPECT_EQ(stream.push("\x80y"), "😀y");
  EXPECT_EQ(stream.push("\xE4\xBD"), "");
  EXPECT_EQ(stream.push("z"), kMark + "z");  // can no longer become a character: out at once
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push("\xED\xA0"), "");  // half a surrogate waits for its third byte
  EXPECT_EQ(stream.push("\x80"), kMark + kMark + kMark);
  EXPECT_EQ(stream.push("\xED\xA0"), "");
  EXPECT_EQ(stream.flush(), kMark + kMark);
}

TEST(Utf8, StreamJoinsToTheWholeForAnyCut) {
  std::mt19937 random(20260110);
  const std::string bytes_of_interest =
      "a\x80\xBF\xC2\xE0\xA0\xED\x9F\xEF\xBF\xBD\xF0\x90\xF4\x8F\xFF";
  for (int round = 0; round < 20000; ++round) {
    std::string bytes(random() % 12, '\0');
    for (char& b : bytes) b = bytes_of_interest[random() % bytes_of_interest.size()];
    Utf8Stream stream;
    std::string joined;
    for (size_t i = 0; i < bytes.size();) {
      const size_t n = std::min<size_t>(1 + random() % 4, bytes.size() - i);
      const std::string piece = stream.push(std::string_view(bytes).substr(i, n));
      EXPECT_TRUE(is_utf8(piece));
      joined += piece;
      i += n;
    }
    joined += stream.flush();
    ASSERT_EQ(joined, sanitize_utf8(bytes));
    ASSERT_TRUE(is_utf8(joined));
  }
}

}  // namespace
}  // namespace cedar::model
