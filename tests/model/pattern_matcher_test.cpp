#include "model/pattern_matcher.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace cedar::model {
namespace {

/// Everything up to the stop string that is complete first; of those that end together, the
/// longest.
std::pair<std::string, bool> cut_at_stop(const std::string& text,
                                         const std::vector<std::string>& stops) {
  for (size_t end = 0; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

// B48.
TEST(StopStrings, NothingOfTheStopStringGetsOut) {
  StopStrings stop({"beta gamma"});
  std::string sent;
  for (const char* piece : {"alpha ", "be", "ta ", "gam"}) sent += stop.push(piece);
  EXPECT_EQ(sent, "alpha ");
  EXPECT_FALSE(stop.stopped());
  sent += stop.push("ma and more");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.matched(), "beta gamma");
  sent += stop.push("even more");
  EXPECT_EQ(sent + stop.flush(), "alpha ");
}

TEST(StopStrings, ANearMissIsReleasedInFull) {
  StopStrings stop({"beta gamma"});
  std::string sent;
  for (const char* piece : {"be", "ta ", "gam", "ut", " be"}) sent += stop.push(piece);
  EXPECT_EQ(sent, "beta gamut ");
  EXPECT_EQ(sent + stop.flush(), "beta gamut be");
  EXPECT_FALSE(stop.stopped());
}

TEST(StopStrings, EqualASearchOfTheWholeTextForAnyCut) {
  std::mt19937 random(17);
  const auto word = [&random](size_t longest) {
    std::string text(random() % (longest + 1), 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = word(5);
    stops.push_back("");  // matches nothing
    const std::string text = word(20);
    stops.erase(std::remove(stops.begin(), stops.end(), ""), stops.end());
    const auto [expected, hit] = cut_at_stop(text, stops);
    StopStrings stop(stops);
    std::string sent;
    for (size_t i = 0; i < text.size();) {
      const size_t n = 1 + random() % 4;
      sent += stop.push(std::string_view(text).substr(i, n));
      i += n;
    }
    sent += stop.flush();
    ASSERT_EQ(sent, expected) << text;
    ASSERT_EQ(stop.stopped(), hit);
  }
}

TEST(PatternMatcher, EmptyPatternsMatchNothing) {
  PatternMatcher matcher({""});
  EXPECT_EQ(matcher.step('a'), -1);
  EXPECT_EQ(matcher.depth(), 0u);
}

}  // namespace
}  // namespace cedar::model
