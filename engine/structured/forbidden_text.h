#pragma once
// Byte sequences that may not appear where a constraint holds: the markers that the output parser looks for
// (model/chat_parser.h), spelled out in ordinary tokens. Only the added token may stand for a marker, so that
// a JSON string cannot begin a tool call.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace cedar::engine::structured {

class ForbiddenText {
 public:
  ForbiddenText() : ForbiddenText(std::vector<std::string>{}) {}
  explicit ForbiddenText(const std::vector<std::string>& markers);

  static constexpr int16_t kForbidden = -1;
  /// The state after one more byte; 0 is the first state. kForbidden: a marker would be complete.
  int16_t next(int16_t state, uint8_t byte) const {
    return rows_[static_cast<size_t>(state)][byte];
  }
  bool contains(std::string_view text) const;

 private:
  std::vector<std::array<int16_t, 256>> rows_;
};

}  // namespace cedar::engine::structured
