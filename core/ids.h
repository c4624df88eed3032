#pragma once
// Strong ids: two of them cannot be mixed up by accident. Hashable, comparable, printable by value.

#include <compare>
#include <cstdint>
#include <functional>

namespace cedar {

template <class Tag, class Rep>
struct StrongId {
  using rep = Rep;
  Rep value{};

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  friend constexpr auto operator<=>(StrongId, StrongId) = default;

  template <class Inspector>
  friend typename Inspector::result_type inspect(Inspector& f, StrongId& x) {
    return f(x.value);
  }
};

using RequestId = StrongId<struct RequestIdTag, uint64_t>;
using LeaseId = StrongId<struct LeaseIdTag, uint64_t>;
using NodeId = StrongId<struct NodeIdTag, uint32_t>;
using BlockId = StrongId<struct BlockIdTag, int32_t>;            // page of a KvBlockPool
using SequenceSlot = StrongId<struct SequenceSlotTag, int32_t>;  // row of the window caches

using TokenId = int32_t;   // 0 <= id < vocab_size
using Position = int64_t;  // 0-based token position of one sequence
using LayerId = int32_t;   // 0-based

}  // namespace cedar

template <class Tag, class Rep>
struct std::hash<cedar::StrongId<Tag, Rep>> {
  size_t operator()(cedar::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
