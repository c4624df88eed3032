#include "engine/shared_attention.h"

#include <gtest/gtest.h>

namespace cedar::engine {
namespace {

TEST(SharedAttention, AConsumerGetsItsOwnersValue) {
  SharedAttention shared;
  SharedTopk second, eighth;
  second.k = 2;
  eighth.k = 8;
  shared.publish(2, second);
  shared.publish(8, eighth);
  EXPECT_EQ(shared.topk(3, 2)->k, 2);
  EXPECT_EQ(shared.topk(9, 8)->k, 8);
}

TEST(SharedAttention, AnUnsetOwnerIsAnErrorThatNamesBoth) {
  SharedAttention shared;
  shared.publish(20, SharedKv{});
  const auto wrong = shared.kv(15, 14);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().code, Errc::internal);
  EXPECT_EQ(wrong.error().context,
            "layer 15 reads the KV of layer 14, which has not published one in this step");
  EXPECT_FALSE(shared.candidates(24, 20).has_value());
}

}  // namespace
}  // namespace cedar::engine
