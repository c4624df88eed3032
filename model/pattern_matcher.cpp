#include "model/pattern_matcher.h"

namespace cedar::model {

PatternMatcher::PatternMatcher(const std::vector<std::string>& patterns) : nodes_(1) {
  for (size_t p = 0; p < patterns.size(); ++p) {
    uint32_t node = 0;
    for (const char byte : patterns[p]) {
      uint32_t next = child(node, byte);
      if (next == 0) {
        next = static_cast<uint32_t>(nodes_.size());
        nodes_.push_back({{}, 0, nodes_[node].depth + 1, -1});
        nodes_[node].children.emplace_back(byte, next);
      }
      node = next;
    }
    if (node != 0) nodes_[node].pattern = static_cast<int>(p);
  }
  // Breadth first, so that the fallback of every shorter string is known.
  std::vector<uint32_t> queue{0};
  for (size_t i = 0; i < queue.size(); ++i) {
    const uint32_t node = queue[i];
    for (const auto& [byte, next] : nodes_[node].children) {
      Node& target = nodes_[next];
      target.fallback = node == 0 ? 0 : advance(nodes_[node].fallback, byte);
      if (target.pattern < 0) target.pattern = nodes_[target.fallback].pattern;
      queue.push_back(next);
    }
  }
}

uint32_t PatternMatcher::child(uint32_t node, char byte) const {
  for (const auto& [edge, target] : nodes_[node].children) {
    if (edge == byte) return target;
  }
  return 0;
}

uint32_t PatternMatcher::advance(uint32_t node, char byte) const {
  for (;;) {
    if (const uint32_t next = child(node, byte); next != 0) return next;
    if (node == 0) return 0;
    node = nodes_[node].fallback;
  }
}

int PatternMatcher::step(char byte) {
  state_ = advance(state_, byte);
  return nodes_[state_].pattern;
}

std::string StopStrings::push(std::string_view text) {
  if (stopped()) return {};
  std::string out = std::move(held_);
  held_.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    matched_ = matcher_.step(text[i]);
    if (stopped()) {
      out.resize(out.size() - matched().size());
      return out;
    }
  }
  held_ = out.substr(out.size() - matcher_.depth());
  out.resize(out.size() - held_.size());
  return out;
}

std::string StopStrings::flush() {
  matcher_.reset();
  return std::exchange(held_, {});
}

}  // namespace cedar::model
