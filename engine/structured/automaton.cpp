#include "engine/structured/automaton.h"

#include <algorithm>
#include <unordered_set>

namespace cedar::engine::structured {
namespace {

constexpr size_t kMaxClosureSteps = 16'384;

struct ThreadHash {
  size_t operator()(const Thread& thread) const {
    uint64_t h = thread.size();
    for (const Frame& f : thread) {
      for (const int32_t word : {f.vertex, f.need, f.left}) {
        h = (h ^ static_cast<uint32_t>(word)) * 0x9e3779b97f4a7c15ULL;
        h ^= h >> 29;
      }
    }
    return static_cast<size_t>(h);
  }
};

/// Follows the edges that take nothing until every thread waits for a byte or a token.
class Closure {
 public:
  explicit Closure(const Graph& graph) : graph_(graph) {}

  void add(Thread thread) {
    const auto frames = static_cast<int32_t>(thread.size());
    if (frames + graph_.height(thread.back().vertex) > kMaxFrames) return;
    if (seen_.size() >= kMaxClosureSteps || !seen_.insert(thread).second) return;
    work_.push_back(std::move(thread));
  }

  State run(int16_t forbidden) {
    State state;
    state.forbidden = forbidden;
    while (!work_.empty()) {
      const Thread thread = std::move(work_.back());
      work_.pop_back();
      follow(thread, state);
    }
    std::sort(state.threads.begin(), state.threads.end());
    return state;
  }

 private:
  void follow(const Thread& thread, State& state) {
    const Vertex vertex = thread.back().vertex;
    if (graph_.is_end(vertex)) {
      if (thread.size() == 1) {
        state.complete = true;
      } else {
        add(Thread(thread.begin(), thread.end() - 1));
      }
    }
    bool waits = false;
    for (const Edge& edge : graph_.edges(vertex)) {
      if (edge.kind == EdgeKind::bytes || edge.kind == EdgeKind::token) {
        waits = true;
      } else {
        take(thread, edge);
      }
    }
    if (waits && state.threads.size() < kMaxThreads) state.threads.push_back(thread);
  }

  void take(Thread thread, const Edge& edge) {
    Frame& top = thread.back();
    top.vertex = edge.target;
    switch (edge.kind) {
      case EdgeKind::call: {
        const auto frames = static_cast<int32_t>(thread.size());
        if (frames + graph_.height(edge.target) > kMaxFrames) return;
        thread.push_back({graph_.start_of(edge.a), 0, 0});
        break;
      }
      case EdgeKind::count_begin:
        top.need = edge.a;
        top.left = edge.b;
        break;
      case EdgeKind::count_step:
        if (top.left == 0) return;
        if (top.left > 0) --top.left;
        if (top.need > 0) --top.need;
        break;
      case EdgeKind::count_end:
        if (top.need > 0) return;
        top.left = 0;
        break;
      case EdgeKind::jump:
      case EdgeKind::bytes:
      case EdgeKind::token: break;
    }
    add(std::move(thread));
  }

  const Graph& graph_;
  std::unordered_set<Thread, ThreadHash> seen_;
  std::vector<Thread> work_;
};

Thread moved_to(const Thread& thread, Vertex vertex) {
  Thread moved = thread;
  moved.back().vertex = vertex;
  return moved;
}

}  // namespace

size_t StateHash::operator()(const State& state) const {
  uint64_t h = static_cast<uint64_t>(state.forbidden) * 2 + (state.complete ? 1 : 0);
  for (const Thread& thread : state.threads) {
    h = (h ^ ThreadHash{}(thread)) * 0xbf58476d1ce4e5b9ULL;
    h ^= h >> 31;
  }
  return static_cast<size_t>(h);
}

State start_state(const Automaton& automaton) {
  Closure closure(automaton.graph);
  closure.add({{automaton.graph.start_of(0), 0, 0}});
  return closure.run(0);
}

State after_byte(const Automaton& automaton, const State& state, uint8_t byte) {
  const int16_t forbidden = automaton.forbidden.next(state.forbidden, byte);
  if (forbidden == ForbiddenText::kForbidden) return {};
  Closure closure(automaton.graph);
  for (const Thread& thread : state.threads) {
    for (const Edge& edge : automaton.graph.edges(thread.back().vertex)) {
      if (edge.kind == EdgeKind::bytes && edge.low <= byte && byte <= edge.high) {
        closure.add(moved_to(thread, edge.target));
      }
    }
  }
  return closure.run(forbidden);
}

State after_token(const Automaton& automaton, const State& state, TokenId id) {
  Closure closure(automaton.graph);
  for (const Thread& thread : state.threads) {
    for (const Edge& edge : automaton.graph.edges(thread.back().vertex)) {
      if (edge.kind == EdgeKind::token && edge.a == id) closure.add(moved_to(thread, edge.target));
    }
  }
  return closure.run(0);
}

State with_counters_up_to(const State& state, int32_t limit) {
  State result = state;
  for (Thread& thread : result.threads) {
    for (Frame& frame : thread) {
      frame.need = std::min(frame.need, limit);
      frame.left = std::min(frame.left, limit);
    }
  }
  std::sort(result.threads.begin(), result.threads.end());
  const auto end = std::unique(result.threads.begin(), result.threads.end());
  result.threads.erase(end, result.threads.end());
  return result;
}

std::vector<TokenId> takeable_tokens(const Automaton& automaton, const State& state) {
  std::vector<TokenId> ids;
  for (const Thread& thread : state.threads) {
    for (const Edge& edge : automaton.graph.edges(thread.back().vertex)) {
      if (edge.kind == EdgeKind::token) ids.push_back(edge.a);
    }
  }
  return ids;
}

}  // namespace cedar::engine::structured
