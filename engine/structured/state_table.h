#pragma once
// States that were met, numbered, with the rows of a transition table that grow as they are asked for. What
// makes a walk over a whole vocabulary fast: almost all of its steps are one look into a row.

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/structured/automaton.h"

namespace cedar::engine::structured {

/// One thread at a time.
class StateTable {
 public:
  using Id = int32_t;
  static constexpr Id kDead = -1;
  /// A row is 1 KiB. reset_if_full() empties a table that has more states than the first, and a walk that
  /// needs more than the second is given up.
  static constexpr size_t kKeep = 8192;
  static constexpr size_t kMost = 32'768;

  explicit StateTable(const Automaton& automaton) : automaton_(automaton) {}

  Id id_of(const State& state);
  const State& state(Id id) const { return *states_[static_cast<size_t>(id)]; }
  Id next(Id id, uint8_t byte) {
    const auto& row = rows_[static_cast<size_t>(id)];
    return row ? (*row)[byte] : fill(id, byte);
  }
  bool exhausted() const { return states_.size() > kMost; }
  /// Forgets every id.
  void reset_if_full();

 private:
  using Row = std::array<Id, 256>;
  Id fill(Id id, uint8_t byte);

  const Automaton& automaton_;
  std::unordered_map<State, Id, StateHash> ids_;
  std::vector<const State*> states_;  // keys of ids_
  std::vector<std::unique_ptr<Row>> rows_;
};

}  // namespace cedar::engine::structured
