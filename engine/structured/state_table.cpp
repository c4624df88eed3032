#include "engine/structured/state_table.h"

#include <bitset>

namespace cedar::engine::structured {

StateTable::Id StateTable::id_of(const State& state) {
  if (state.dead()) return kDead;
  const auto [found, is_new] = ids_.try_emplace(state, static_cast<Id>(states_.size()));
  if (is_new) {
    states_.push_back(&found->first);
    rows_.emplace_back();
  }
  return found->second;
}

void StateTable::reset_if_full() {
  if (states_.size() <= kKeep) return;
  ids_.clear();
  states_.clear();
  rows_.clear();
}

/// Bytes between two borders of ranges lead to the same state: one step for all of them.
StateTable::Id StateTable::fill(Id id, uint8_t byte) {
  const State& state = *states_[static_cast<size_t>(id)];
  std::bitset<257> border;
  border.set(0);
  std::bitset<256> taken;
  for (const Thread& thread : state.threads) {
    for (const Edge& edge : automaton_.graph.edges(thread.back().vertex)) {
      if (edge.kind != EdgeKind::bytes) continue;
      border.set(edge.low);
      border.set(static_cast<size_t>(edge.high) + 1);
      for (size_t b = edge.low; b <= edge.high; ++b) taken.set(b);
    }
  }
  const auto forbidden_after = [&](size_t b) {
    return automaton_.forbidden.next(state.forbidden, static_cast<uint8_t>(b));
  };
  for (size_t b = 1; b < 256; ++b) {
    if (forbidden_after(b) != forbidden_after(b - 1)) border.set(b);
  }
  auto row = std::make_unique<Row>();
  Id target = kDead;
  for (size_t b = 0; b < 256; ++b) {
    if (border[b]) {
      target = taken[b] ? id_of(after_byte(automaton_, state, static_cast<uint8_t>(b))) : kDead;
    }
    (*row)[b] = target;
  }
  const Id result = (*row)[byte];
  rows_[static_cast<size_t>(id)] = std::move(row);
  return result;
}

}  // namespace cedar::engine::structured
