#include "engine/structured/graph.h"

#include <algorithm>
#include <map>

namespace cedar::engine::structured {
namespace {

constexpr int32_t kNever = INT32_MAX / 2;

bool takes_nothing(EdgeKind kind) { return kind != EdgeKind::bytes && kind != EdgeKind::token; }

}  // namespace

Vertex Graph::add_vertex() {
  if (edges_.size() >= kMaxVertices) {
    too_large_ = true;
    return 0;
  }
  edges_.emplace_back();
  is_end_.push_back(0);
  return static_cast<Vertex>(edges_.size()) - 1;
}

Rule Graph::add_rule() {
  starts_.push_back(add_vertex());
  ends_.push_back(add_vertex());
  is_end_[static_cast<size_t>(ends_.back())] = 1;
  return static_cast<Rule>(starts_.size()) - 1;
}

void Graph::add(Vertex from, const Edge& edge) {
  if (too_large_) return;
  if (++edge_count_ > kMaxEdges) {
    too_large_ = true;
    return;
  }
  edges_[static_cast<size_t>(from)].push_back(edge);
}

void Graph::bytes(Vertex from, uint8_t low, uint8_t high, Vertex to) {
  if (low <= high) add(from, {EdgeKind::bytes, low, high, to, 0, 0});
}

void Graph::byte(Vertex from, char value, Vertex to) {
  const auto b = static_cast<uint8_t>(value);
  bytes(from, b, b, to);
}

void Graph::literal(Vertex from, std::string_view text, Vertex to) {
  if (text.empty()) return jump(from, to);
  for (size_t i = 0; i < text.size(); ++i) {
    const Vertex next = i + 1 == text.size() ? to : add_vertex();
    byte(from, text[i], next);
    from = next;
  }
}

void Graph::literals(Vertex from, const std::vector<std::string>& texts, Vertex to) {
  std::map<std::pair<Vertex, char>, Vertex> children;
  for (const std::string& text : texts) {
    Vertex at = from;
    for (const char c : text) {
      const auto [found, is_new] = children.try_emplace({at, c}, 0);
      if (is_new) {
        found->second = add_vertex();
        byte(at, c, found->second);
      }
      at = found->second;
    }
    jump(at, to);
  }
}

void Graph::token(Vertex from, TokenId id, Vertex to) {
  add(from, {EdgeKind::token, 0, 0, to, id, 0});
}
void Graph::jump(Vertex from, Vertex to) { add(from, {EdgeKind::jump, 0, 0, to, 0, 0}); }
void Graph::call(Vertex from, Rule rule, Vertex to) {
  add(from, {EdgeKind::call, 0, 0, to, rule, 0});
}
void Graph::count_begin(Vertex from, int32_t min, int32_t max, Vertex to) {
  add(from, {EdgeKind::count_begin, 0, 0, to, min, max});
}
void Graph::count_step(Vertex from, Vertex to) {
  add(from, {EdgeKind::count_step, 0, 0, to, 0, 0});
}
void Graph::count_end(Vertex from, Vertex to) { add(from, {EdgeKind::count_end, 0, 0, to, 0, 0}); }

/// Least fixed point. Heights only fall, each worklist entry is a fall, and finite ones are at most the number
/// of rules, so this ends.
void Graph::compute_heights() {
  const size_t count = edges_.size();
  heights_.assign(count, kNever);
  std::vector<std::vector<Vertex>> depends(count);  // whose height looks at this vertex
  for (size_t v = 0; v < count; ++v) {
    for (const Edge& edge : edges_[v]) {
      depends[static_cast<size_t>(edge.target)].push_back(static_cast<Vertex>(v));
      if (edge.kind == EdgeKind::call) {
        depends[static_cast<size_t>(start_of(edge.a))].push_back(static_cast<Vertex>(v));
      }
    }
  }
  const auto height_now = [this](size_t v) {
    if (is_end_[v] != 0) return 0;
    int32_t best = kNever;
    for (const Edge& edge : edges_[v]) {
      int32_t height = heights_[static_cast<size_t>(edge.target)];
      if (edge.kind == EdgeKind::call) {
        height = std::max(height, 1 + heights_[static_cast<size_t>(start_of(edge.a))]);
      }
      best = std::min(best, height);
    }
    return best;
  };
  std::vector<Vertex> work;
  for (const Vertex end : ends_) {
    heights_[static_cast<size_t>(end)] = 0;
    work.push_back(end);
  }
  while (!work.empty()) {
    const Vertex changed = work.back();
    work.pop_back();
    for (const Vertex v : depends[static_cast<size_t>(changed)]) {
      const int32_t height = height_now(static_cast<size_t>(v));
      if (height >= heights_[static_cast<size_t>(v)]) continue;
      heights_[static_cast<size_t>(v)] = height;
      work.push_back(v);
    }
  }
}

void Graph::prune() {
  for (auto& list : edges_) {
    std::erase_if(list, [this](const Edge& edge) {
      int32_t height = heights_[static_cast<size_t>(edge.target)];
      if (edge.kind == EdgeKind::call) {
        height = std::max(height, 1 + heights_[static_cast<size_t>(start_of(edge.a))]);
      }
      return height >= kMaxFrames;
    });
  }
}

/// Whether some rule can reach a call of itself without taking a byte. Every value takes one, so only $ref and
/// anyOf can do this.
bool Graph::calls_itself_at_once() const {
  std::vector<std::vector<Rule>> called(starts_.size());
  for (size_t rule = 0; rule < starts_.size(); ++rule) {
    std::vector<Vertex> work{starts_[rule]};
    std::vector<Vertex> seen = work;
    while (!work.empty()) {
      const Vertex v = work.back();
      work.pop_back();
      for (const Edge& edge : edges_[static_cast<size_t>(v)]) {
        if (!takes_nothing(edge.kind)) continue;
        if (edge.kind == EdgeKind::call) {
          called[rule].push_back(edge.a);
        } else if (std::find(seen.begin(), seen.end(), edge.target) == seen.end()) {
          seen.push_back(edge.target);
          work.push_back(edge.target);
        }
      }
    }
  }
  // Rules that are left after taking away, again and again, those that call no rule that is left.
  std::vector<uint8_t> done(starts_.size(), 0);
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t rule = 0; rule < called.size(); ++rule) {
      if (done[rule] != 0) continue;
      const bool free = std::all_of(called[rule].begin(), called[rule].end(),
                                    [&](Rule r) { return done[static_cast<size_t>(r)] != 0; });
      if (!free) continue;
      done[rule] = 1;
      progress = true;
    }
  }
  return std::find(done.begin(), done.end(), 0) != done.end();
}

Status Graph::finish() {
  if (too_large_) {
    return make_error(Errc::unsupported, "needs more than " + std::to_string(kMaxVertices) +
                                             " states or " + std::to_string(kMaxEdges) +
                                             " transitions");
  }
  compute_heights();
  prune();
  if (calls_itself_at_once()) {
    return make_error(Errc::unsupported, "refers to itself without taking anything in between");
  }
  if (heights_[static_cast<size_t>(starts_.front())] >= kMaxFrames) {
    return make_error(Errc::unsupported, "no value of at most " + std::to_string(kMaxFrames) +
                                             " levels can satisfy it");
  }
  return {};
}

}  // namespace cedar::engine::structured
