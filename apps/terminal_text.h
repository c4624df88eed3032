#pragma once
// Text for a person's terminal.

#include <cstdint>
#include <string>
#include <string_view>

namespace cedar::apps {

/// Text from elsewhere without what a terminal would obey: control characters other than tab and line feed
/// become the signs that stand for them (escape is U+241B), those of U+0080 to U+009F become U+FFFD.
std::string printable(std::string_view text);

/// ", 1520.3 tokens/s" of tokens that came one after another, `seconds` between the first and the last; empty when
/// that is no measurement: fewer than two tokens, or a time as short as that of one read.
std::string rate_text(int64_t tokens, double seconds);

}  // namespace cedar::apps
