#include "engine/structured/string_rules.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "model/json_python.h"

namespace cedar::engine::structured {
namespace {

const CharSet& as_they_are(Spelling spelling) {
  static const CharSet json = CharSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}).complement();
  static const CharSet raw = CharSet({{0, 0x08}, {0x0B, 0x0C}, {0x0E, 0x1F}}).complement();
  return spelling == Spelling::json ? json : raw;
}

constexpr std::array<std::pair<char32_t, char>, 7> kShortEscapes{{{U'"', '"'},
                                                                  {U'\\', '\\'},
                                                                  {U'\n', 'n'},
                                                                  {U'\r', 'r'},
                                                                  {U'\t', 't'},
                                                                  {U'\b', 'b'},
                                                                  {U'\f', 'f'}}};

void hex_digits(Graph& graph, Vertex from, int count, Vertex to) {
  for (int i = 0; i < count; ++i) {
    const Vertex next = i + 1 == count ? to : graph.add_vertex();
    graph.bytes(from, '0', '9', next);
    graph.bytes(from, 'a', 'f', next);
    graph.bytes(from, 'A', 'F', next);
    from = next;
  }
}

/// After a backslash: the short escapes, and \u with a scalar value, which above U+FFFF takes two of them.
void add_any_escape(Graph& graph, Vertex from, Vertex to) {
  for (const char c : std::string_view("\"\\/bfnrt")) graph.byte(from, c, to);
  const Vertex first = graph.add_vertex(), three = graph.add_vertex(), after_d = graph.add_vertex();
  graph.byte(from, 'u', first);
  graph.bytes(first, '0', '9', three);
  for (const auto& [low, high] : {std::pair('a', 'c'), {'e', 'f'}, {'A', 'C'}, {'E', 'F'}}) {
    graph.bytes(first, static_cast<uint8_t>(low), static_cast<uint8_t>(high), three);
  }
  hex_digits(graph, three, 3, to);
  graph.byte(first, 'd', after_d);
  graph.byte(first, 'D', after_d);
  const Vertex two = graph.add_vertex(), high_half = graph.add_vertex();
  graph.bytes(after_d, '0', '7', two);
  hex_digits(graph, two, 2, to);
  graph.bytes(after_d, '8', '9', high_half);
  graph.bytes(after_d, 'a', 'b', high_half);
  graph.bytes(after_d, 'A', 'B', high_half);
  const Vertex second = graph.add_vertex(), low_d = graph.add_vertex(), low = graph.add_vertex();
  const Vertex low_two = graph.add_vertex();
  hex_digits(graph, high_half, 2, second);
  graph.literal(second, "\\u", low_d);
  graph.byte(low_d, 'd', low);
  graph.byte(low_d, 'D', low);
  graph.bytes(low, 'c', 'f', low_two);
  graph.bytes(low, 'C', 'F', low_two);
  hex_digits(graph, low_two, 2, to);
}

void add_any_character(Graph& graph, Vertex from, Spelling spelling, Vertex to) {
  add_utf8(graph, from, as_they_are(spelling), to);
  if (spelling != Spelling::json) return;
  const Vertex escape = graph.add_vertex();
  graph.byte(from, '\\', escape);
  add_any_escape(graph, escape, to);
}

void add_character(Graph& graph, Vertex from, Spelling spelling, const CharSet& set, Vertex to) {
  add_utf8(graph, from, set.without(as_they_are(spelling).complement()), to);
  if (spelling != Spelling::json) return;
  Vertex escape = -1;
  for (const auto& [character, letter] : kShortEscapes) {
    if (!set.contains(character)) continue;
    if (escape < 0) {
      escape = graph.add_vertex();
      graph.byte(from, '\\', escape);
    }
    graph.byte(escape, letter, to);
  }
}

/// Which states lead to the end; the others are not worth their edges.
std::vector<uint8_t> useful_states(const CharAutomaton& automaton) {
  std::vector<std::vector<int32_t>> sources(automaton.edges.size());
  for (size_t from = 0; from < automaton.edges.size(); ++from) {
    for (const CharAutomaton::Edge& edge : automaton.edges[from]) {
      sources[static_cast<size_t>(edge.target)].push_back(static_cast<int32_t>(from));
    }
  }
  std::vector<uint8_t> useful(automaton.edges.size(), 0);
  std::vector<int32_t> work{automaton.accept};
  useful[static_cast<size_t>(automaton.accept)] = 1;
  while (!work.empty()) {
    const int32_t state = work.back();
    work.pop_back();
    for (const int32_t from : sources[static_cast<size_t>(state)]) {
      if (std::exchange(useful[static_cast<size_t>(from)], 1) == 0) work.push_back(from);
    }
  }
  return useful;
}

struct Utf8Range {
  uint8_t low, high;
  int next;  // 0: the character is complete
};
/// Well-formed UTF-8 as an automaton: the ranges of the next byte, by state.
const std::vector<Utf8Range>& utf8_ranges(int state) {
  static const std::array<std::vector<Utf8Range>, 8> table{{
      {{0x00, 0x7F, 0},
       {0xC2, 0xDF, 1},
       {0xE0, 0xE0, 3},
       {0xE1, 0xEC, 2},
       {0xED, 0xED, 4},
       {0xEE, 0xEF, 2},
       {0xF0, 0xF0, 5},
       {0xF1, 0xF3, 7},
       {0xF4, 0xF4, 6}},
      {{0x80, 0xBF, 0}},
      {{0x80, 0xBF, 1}},
      {{0xA0, 0xBF, 1}},
      {{0x80, 0x9F, 1}},
      {{0x90, 0xBF, 2}},
      {{0x80, 0x8F, 2}},
      {{0x80, 0xBF, 2}},
  }};
  return table[static_cast<size_t>(state)];
}

/// Where a beginning of a taken name stands; names that leave every taken one behind go on in `free`.
struct NamePrefixes {
  std::map<std::string, Vertex> vertices;
  std::array<Vertex, 8> free{};
};

bool allowed_in_name(uint8_t byte, Spelling spelling) {
  if (byte < 0x20 || byte == '"' || byte == '\\') return false;
  return spelling == Spelling::json || (byte != '<' && byte != '>');
}

void add_name_edges(Graph& graph, Vertex from, int utf8_state, Spelling spelling,
                    const NamePrefixes& names, const std::string* prefix) {
  for (const Utf8Range& range : utf8_ranges(utf8_state)) {
    for (int b = range.low; b <= range.high; ++b) {
      if (!allowed_in_name(static_cast<uint8_t>(b), spelling)) continue;
      Vertex to = names.free[static_cast<size_t>(range.next)];
      if (prefix != nullptr) {
        const auto found = names.vertices.find(*prefix + static_cast<char>(b));
        if (found != names.vertices.end()) to = found->second;
      }
      // Runs of bytes with one target make one edge.
      int last = b;
      while (prefix == nullptr && last < range.high &&
             allowed_in_name(static_cast<uint8_t>(last + 1), spelling)) {
        ++last;
      }
      graph.bytes(from, static_cast<uint8_t>(b), static_cast<uint8_t>(last), to);
      b = last;
    }
  }
}

/// The UTF-8 state after a beginning of a well-formed text.
int utf8_state_after(std::string_view prefix) {
  int state = 0;
  for (const char c : prefix) {
    const auto byte = static_cast<uint8_t>(c);
    for (const Utf8Range& range : utf8_ranges(state)) {
      if (range.low <= byte && byte <= range.high) {
        state = range.next;
        break;
      }
    }
  }
  return state;
}

}  // namespace

void add_text(Graph& graph, Vertex from, Spelling spelling, int32_t min, int32_t max, Vertex to) {
  const Vertex between = graph.add_vertex();
  if (min == 0 && max == kUnbounded) {
    graph.jump(from, between);
    add_any_character(graph, between, spelling, between);
    graph.jump(between, to);
    return;
  }
  const Vertex character = graph.add_vertex();
  graph.count_begin(from, min, max, between);
  graph.count_step(between, character);
  add_any_character(graph, character, spelling, between);
  graph.count_end(between, to);
}

void add_text(Graph& graph, Vertex from, Spelling spelling, const CharAutomaton& automaton,
              Vertex to) {
  const std::vector<uint8_t> useful = useful_states(automaton);
  std::vector<Vertex> vertices(automaton.edges.size(), 0);
  for (size_t state = 0; state < vertices.size(); ++state) {
    if (useful[state] != 0) vertices[state] = graph.add_vertex();
  }
  if (useful.front() == 0) return;  // no string at all: `to` stays out of reach
  graph.jump(from, vertices.front());
  graph.jump(vertices[static_cast<size_t>(automaton.accept)], to);
  for (size_t state = 0; state < vertices.size() && !graph.too_large(); ++state) {
    if (useful[state] == 0) continue;
    for (const CharAutomaton::Edge& edge : automaton.edges[state]) {
      if (useful[static_cast<size_t>(edge.target)] == 0) continue;
      const Vertex target = vertices[static_cast<size_t>(edge.target)];
      if (edge.set < 0) {
        graph.jump(vertices[state], target);
      } else {
        add_character(graph, vertices[state], spelling,
                      automaton.sets[static_cast<size_t>(edge.set)], target);
      }
    }
  }
}

void add_other_name(Graph& graph, Vertex from, Spelling spelling,
                    const std::vector<std::string>& taken, Vertex to) {
  NamePrefixes names;
  for (Vertex& vertex : names.free) vertex = graph.add_vertex();
  names.vertices.emplace("", graph.add_vertex());
  for (const std::string& name : taken) {
    for (size_t length = 1; length <= name.size(); ++length) {
      const auto [found, is_new] = names.vertices.try_emplace(name.substr(0, length), 0);
      if (is_new) found->second = graph.add_vertex();
      if (graph.too_large()) return;
    }
  }
  graph.jump(from, names.vertices.at(""));
  for (int state = 0; state < 8; ++state) {
    add_name_edges(graph, names.free[static_cast<size_t>(state)], state, spelling, names, nullptr);
  }
  graph.jump(names.free[0], to);
  for (const auto& [prefix, vertex] : names.vertices) {
    const int state = utf8_state_after(prefix);
    add_name_edges(graph, vertex, state, spelling, names, &prefix);
    const bool is_taken = std::find(taken.begin(), taken.end(), prefix) != taken.end();
    // An empty name is legal JSON and of no use to anybody.
    if (state == 0 && !is_taken && !prefix.empty()) graph.jump(vertex, to);
  }
}

std::string json_spelling(std::string_view value) {
  std::string text;
  model::append_json_escaped(text, value);
  return text;
}

}  // namespace cedar::engine::structured
