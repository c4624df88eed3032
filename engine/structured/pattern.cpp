// Design: a recursive-descent parser to a tree, then Thompson's construction. Counted repetition copies its
// operand, so its size is bounded where states are made, not where numbers are read.

#include "engine/structured/pattern.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "model/utf8.h"

namespace cedar::engine::structured {
namespace {

constexpr int kMaxNesting = 64;
constexpr int32_t kMaxRepeat = 4096;

enum class NodeKind : uint8_t { set, sequence, choice, repeat, begin, end };

struct Node {
  NodeKind kind = NodeKind::sequence;
  CharSet set;
  std::vector<Node> parts;
  int32_t min = 0, max = kUnbounded;
};

const CharSet& digits() {
  static const CharSet set({{'0', '9'}});
  return set;
}
const CharSet& word_characters() {
  static const CharSet set({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  return set;
}
const CharSet& blanks() {
  static const CharSet set({{0x09, 0x0D},
                            {' ', ' '},
                            {0xA0, 0xA0},
                            {0x1680, 0x1680},
                            {0x2000, 0x200A},
                            {0x2028, 0x2029},
                            {0x202F, 0x202F},
                            {0x205F, 0x205F},
                            {0x3000, 0x3000},
                            {0xFEFF, 0xFEFF}});
  return set;
}
const CharSet& line_ends() {
  static const CharSet set({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});
  return set;
}

Node set_node(CharSet set) { return {NodeKind::set, std::move(set), {}, 0, 0}; }
CharSet one(char32_t c) { return CharSet({{c, c}}); }

class Parser {
 public:
  explicit Parser(std::u32string text) : text_(std::move(text)) {}

  Result<Node> parse() {
    CEDAR_TRY(Node node, choice(0));
    if (!at_end()) return error("has an unmatched )");
    return node;
  }

 private:
  bool at_end() const { return at_ == text_.size(); }
  bool peek(char32_t c) const { return !at_end() && text_[at_] == c; }
  bool take(char32_t c) {
    if (!peek(c)) return false;
    ++at_;
    return true;
  }
  Error error(const std::string& problem) const {
    return make_error(Errc::unsupported, problem + " at character " + std::to_string(at_));
  }

  Result<Node> choice(int depth) {
    if (depth > kMaxNesting) return error("is nested too deeply");
    Node node;
    node.kind = NodeKind::choice;
    do {
      CEDAR_TRY(Node part, sequence(depth));
      node.parts.push_back(std::move(part));
    } while (take('|'));
    return node;
  }

  Result<Node> sequence(int depth) {
    Node node;
    while (!at_end() && !peek('|') && !peek(')')) {
      CEDAR_TRY(Node part, atom(depth));
      CEDAR_CHECK_OK(quantifiers(part));
      node.parts.push_back(std::move(part));
    }
    return node;
  }

  Result<Node> atom(int depth) {
    const char32_t c = text_[at_++];
    switch (c) {
      case '^': return Node{NodeKind::begin, {}, {}, 0, 0};
      case '$': return Node{NodeKind::end, {}, {}, 0, 0};
      case '.': return set_node(line_ends().complement());
      case '[': return bracket();
      case '(': return group(depth);
      case '\\': {
        CEDAR_TRY(CharSet set, escape());
        return set_node(std::move(set));
      }
      case '*':
      case '+':
      case '?': --at_; return error("has nothing to repeat");
      default: return set_node(one(c));
    }
  }

  Result<Node> group(int depth) {
    if (take('?')) {
      if (take('<') && !peek('=') && !peek('!')) {
        while (!at_end() && !peek('>')) ++at_;  // a name
        if (!take('>')) return error("has an unclosed group name");
      } else if (!take(':')) {
        return error("uses look-around or another unsupported group");
      }
    }
    CEDAR_TRY(Node node, choice(depth + 1));
    if (!take(')')) return error("has an unclosed group");
    return node;
  }

  Status quantifiers(Node& node) {
    int32_t min = 0, max = kUnbounded;
    if (take('*')) {
    } else if (take('+')) {
      min = 1;
    } else if (take('?')) {
      max = 1;
    } else if (peek('{')) {
      CEDAR_TRY(const bool is_count, counts(min, max));
      if (!is_count) return {};
    } else {
      return {};
    }
    if (node.kind == NodeKind::begin || node.kind == NodeKind::end) {
      return error("repeats an anchor");
    }
    take('?');  // lazy: the same strings match
    if (peek('*') || peek('+') || peek('?')) return error("repeats a repetition");
    Node repeat;
    repeat.kind = NodeKind::repeat;
    repeat.min = min;
    repeat.max = max;
    repeat.parts.push_back(std::move(node));
    node = std::move(repeat);
    return {};
  }

  /// {n}, {n,} or {n,m}; anything else is a literal brace.
  Result<bool> counts(int32_t& min, int32_t& max) {
    const size_t begin = at_++;
    const auto number = [this]() -> std::optional<int64_t> {
      std::optional<int64_t> value;
      while (!at_end() && text_[at_] >= '0' && text_[at_] <= '9') {
        value = std::min<int64_t>(value.value_or(0) * 10 + static_cast<int64_t>(text_[at_++] - '0'),
                                  INT32_MAX);
      }
      return value;
    };
    const auto low = number();
    auto high = low;
    if (low && take(',')) high = peek('}') ? std::optional<int64_t>(kUnbounded) : number();
    if (!low || !high || !take('}')) {
      at_ = begin;
      return false;
    }
    if (*low > kMaxRepeat || *high > kMaxRepeat) {
      return error("repeats more than " + std::to_string(kMaxRepeat) + " times");
    }
    if (*high != kUnbounded && *low > *high) return error("has a range out of order");
    min = static_cast<int32_t>(*low);
    max = static_cast<int32_t>(*high);
    return true;
  }

  Result<CharSet> escape() {
    if (at_end()) return error("ends in a backslash");
    const char32_t c = text_[at_++];
    switch (c) {
      case 'd': return digits();
      case 'D': return digits().complement();
      case 'w': return word_characters();
      case 'W': return word_characters().complement();
      case 's': return blanks();
      case 'S': return blanks().complement();
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 't': return one('\t');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case '0': return one(0);
      case 'x': return hex(2);
      case 'u': return hex(4);
      default: break;
    }
    if ((c >= '1' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      return error("uses an unsupported escape");
    }
    return one(c);
  }

  Result<CharSet> hex(int length) {
    char32_t value = 0;
    for (int i = 0; i < length; ++i) {
      const char32_t c = at_end() ? U' ' : text_[at_++];
      char32_t digit = 0;
      if (c >= '0' && c <= '9') digit = c - '0';
      else if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
      else if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
      else return error("has a bad hexadecimal escape");
      value = value * 16 + digit;
    }
    if (value >= 0xD800 && value < 0xE000) return error("names a surrogate");
    return one(value);
  }

  Result<Node> bracket() {
    const bool negated = take('^');
    CharSet set;
    while (!take(']')) {
      if (at_end()) return error("has an unclosed class");
      CEDAR_TRY(CharSet item, class_item());
      const bool is_range = peek('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (is_range) {
        ++at_;
        if (at_end()) return error("has an unclosed class");
        CEDAR_TRY(const CharSet last, class_item());
        const char32_t low = item.ranges().front().first, high = last.ranges().front().first;
        if (item.ranges() != one(low).ranges() || last.ranges() != one(high).ranges() ||
            low > high) {
          return error("has a class range that is none");
        }
        item = CharSet({{low, high}});
      }
      set = set.united(item);
    }
    return set_node(negated ? set.complement() : std::move(set));
  }

  Result<CharSet> class_item() {
    const char32_t c = text_[at_++];
    if (c != '\\') return one(c);
    if (take('b')) return one('\b');
    if (take('-')) return one('-');
    return escape();
  }

  std::u32string text_;
  size_t at_ = 0;
};

/// Anchors hold where nothing can stand outside of them: at the ends of the pattern's alternatives.
class Builder {
 public:
  Result<CharAutomaton> build(Node root) {
    const int32_t first = state();
    automaton_.accept = state();
    any_ = add_set(CharSet::all());
    for (Node& part : root.parts) CEDAR_CHECK_OK(alternative(part, first));
    if (too_large_) {
      return make_error(Errc::unsupported,
                        "needs more than " + std::to_string(kMaxPatternStates) + " states");
    }
    return std::move(automaton_);
  }

 private:
  /// One alternative of the whole pattern. A single group around everything is looked through.
  Status alternative(Node& part, int32_t from) {
    bool at_begin = false, at_end = false;
    std::vector<Node>& items = part.parts;
    if (!items.empty() && items.front().kind == NodeKind::begin) {
      at_begin = true;
      items.erase(items.begin());
    }
    if (!items.empty() && items.back().kind == NodeKind::end) {
      at_end = true;
      items.pop_back();
    }
    if (items.size() == 1 && items.front().kind == NodeKind::choice && !at_begin && !at_end) {
      for (Node& inner : items.front().parts) CEDAR_CHECK_OK(alternative(inner, from));
      return {};
    }
    int32_t begin = from;
    if (!at_begin) {
      begin = state();
      jump(from, begin);
      edge(begin, any_, begin);
    }
    int32_t end = automaton_.accept;
    if (!at_end) {
      end = state();
      edge(end, any_, end);
      jump(end, automaton_.accept);
    }
    return add(part, begin, end);
  }

  Status add(const Node& node, int32_t from, int32_t to) {
    if (too_large_) return {};
    switch (node.kind) {
      case NodeKind::set: edge(from, add_set(node.set), to); return {};
      case NodeKind::begin:
      case NodeKind::end:
        return make_error(Errc::unsupported, "has an anchor that is not at its end");
      case NodeKind::choice:
        for (const Node& part : node.parts) CEDAR_CHECK_OK(add(part, from, to));
        return {};
      case NodeKind::sequence: {
        int32_t at = from;
        for (const Node& part : node.parts) {
          const int32_t next = state();
          CEDAR_CHECK_OK(add(part, at, next));
          at = next;
        }
        jump(at, to);
        return {};
      }
      case NodeKind::repeat: return repeat(node, from, to);
    }
    return {};
  }

  Status repeat(const Node& node, int32_t from, int32_t to) {
    const Node& part = node.parts.front();
    int32_t at = from;
    for (int32_t i = 0; i < node.min && !too_large_; ++i) {
      const int32_t next = state();
      CEDAR_CHECK_OK(add(part, at, next));
      at = next;
    }
    if (node.max == kUnbounded) {
      const int32_t loop = state();
      jump(at, loop);
      CEDAR_CHECK_OK(add(part, loop, loop));
      jump(loop, to);
      return {};
    }
    for (int32_t i = node.min; i < node.max && !too_large_; ++i) {
      jump(at, to);
      const int32_t next = state();
      CEDAR_CHECK_OK(add(part, at, next));
      at = next;
    }
    jump(at, to);
    return {};
  }

  int32_t state() {
    if (automaton_.edges.size() >= kMaxPatternStates) {
      too_large_ = true;
      return 0;
    }
    automaton_.edges.emplace_back();
    return static_cast<int32_t>(automaton_.edges.size()) - 1;
  }
  void edge(int32_t from, int32_t set, int32_t to) {
    automaton_.edges[static_cast<size_t>(from)].push_back({set, to});
  }
  void jump(int32_t from, int32_t to) {
    if (from != to) edge(from, -1, to);
  }
  int32_t add_set(const CharSet& set) {
    const auto [found, is_new] =
        indices_.try_emplace(set.ranges(), static_cast<int32_t>(automaton_.sets.size()));
    if (is_new) automaton_.sets.push_back(set);
    return found->second;
  }

  CharAutomaton automaton_;
  std::map<std::vector<CharSet::Range>, int32_t> indices_;
  int32_t any_ = 0;
  bool too_large_ = false;
};

}  // namespace

Result<CharAutomaton> parse_pattern(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return make_error(Errc::unsupported,
                      "is longer than " + std::to_string(kMaxPatternBytes) + " bytes");
  }
  std::u32string text;
  while (!pattern.empty()) {
    const model::Utf8Step step = model::decode_utf8(pattern);
    text += step.code;
    pattern.remove_prefix(step.length);
  }
  CEDAR_TRY(Node root, Parser(std::move(text)).parse());
  return Builder().build(std::move(root));
}

Result<CharAutomaton> with_length(const CharAutomaton& automaton, int32_t min, int32_t max) {
  // Beyond the last count that matters, counting stops.
  const int32_t cap = max == kUnbounded ? min : max;
  const size_t counts = static_cast<size_t>(cap) + 1;
  if (automaton.edges.size() * counts > kMaxPatternStates * 4) {
    return make_error(Errc::unsupported, "needs too many states together with the length limits");
  }
  CharAutomaton result;
  result.sets = automaton.sets;
  result.edges.resize(automaton.edges.size() * counts + 1);
  result.accept = static_cast<int32_t>(result.edges.size()) - 1;
  const auto id = [&](int32_t state, size_t count) {
    return static_cast<int32_t>(static_cast<size_t>(state) * counts + count);
  };
  for (size_t state = 0; state < automaton.edges.size(); ++state) {
    for (size_t count = 0; count < counts; ++count) {
      auto& edges = result.edges[static_cast<size_t>(id(static_cast<int32_t>(state), count))];
      for (const CharAutomaton::Edge& edge : automaton.edges[state]) {
        if (edge.set < 0) {
          edges.push_back({-1, id(edge.target, count)});
        } else if (count + 1 < counts) {
          edges.push_back({edge.set, id(edge.target, count + 1)});
        } else if (max == kUnbounded) {
          edges.push_back({edge.set, id(edge.target, count)});
        }
      }
      const bool is_accept = static_cast<int32_t>(state) == automaton.accept;
      if (is_accept && count >= static_cast<size_t>(min)) edges.push_back({-1, result.accept});
    }
  }
  return result;
}

}  // namespace cedar::engine::structured
