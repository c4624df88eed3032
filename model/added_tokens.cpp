#include "model/added_tokens.h"

namespace cedar::model {

uint32_t AddedTokenTrie::child(uint32_t node, char byte) const {
  for (const auto& [edge, target] : nodes_[node].children) {
    if (edge == byte) return target;
  }
  return 0;
}

void AddedTokenTrie::add(std::string_view spelling, TokenId id) {
  starts_[static_cast<uint8_t>(spelling.front())] = true;
  uint32_t node = 0;
  for (const char byte : spelling) {
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      nodes_[node].children.emplace_back(byte, next);
    }
    node = next;
  }
  nodes_[node].id = id;
}

std::optional<AddedTokenTrie::Match> AddedTokenTrie::find(std::string_view text,
                                                          size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      node = child(node, text[i]);
      if (node == 0) break;
      if (nodes_[node].id >= 0) longest = Match{begin, i + 1, nodes_[node].id};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace cedar::model
