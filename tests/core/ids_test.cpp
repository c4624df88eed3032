#include "core/ids.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <unordered_set>

namespace cedar {
namespace {

// An id of one kind is not accepted where another is wanted, and a bare number only explicitly.
static_assert(!std::is_convertible_v<RequestId, LeaseId>);
static_assert(!std::is_constructible_v<RequestId, LeaseId>);
static_assert(!std::is_convertible_v<uint64_t, RequestId>);
static_assert(sizeof(BlockId) == sizeof(int32_t));

TEST(Ids, CompareByValue) {
  EXPECT_EQ(RequestId(7), RequestId(7));
  EXPECT_NE(RequestId(7), RequestId(8));
  EXPECT_LT(BlockId(-1), BlockId(0));
  EXPECT_EQ(SequenceSlot().value, 0);
}

TEST(Ids, WorkAsKeysOfHashTables) {
  std::unordered_set<RequestId> seen;
  for (uint64_t i = 0; i < 1000; ++i) seen.insert(RequestId(i % 100));
  EXPECT_EQ(seen.size(), 100U);
  EXPECT_TRUE(seen.count(RequestId(99)) == 1);
}

}  // namespace
}  // namespace cedar
