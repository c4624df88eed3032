#include "model/pcg64.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cedar::model {
namespace {

using testing::ElementsAre;

std::vector<uint64_t> draw(uint32_t seed, uint64_t bound, int count) {
  Pcg64 random(seed);
  std::vector<uint64_t> values;
  for (int i = 0; i < count; ++i) values.push_back(random.below(bound));
  return values;
}

// Expected values: numpy 2, default_rng(seed).bit_generator.random_raw(n) and .integers(0, bound,
// n).
TEST(Pcg64, RawWords) {
  Pcg64 random(12345);
  EXPECT_EQ(random.next(), 4193609425186963869u);
  EXPECT_EQ(random.next(), 5843160025838961886u);
  EXPECT_EQ(random.next(), 14708796524633321433u);
  Pcg64 zero(0);
  EXPECT_EQ(zero.next(), 11749869230777074271u);
  EXPECT_EQ(zero.next(), 4976686463289251617u);
}

TEST(Pcg64, BoundedValues) {
  EXPECT_THAT(draw(0, 4566209423800, 4),
              ElementsAre(2908500459246, 1231902634804, 187093691123, 75468645103));
}

TEST(Pcg64, DrawsAgainWhereNumpyDoes) {
  // Of 2^64 words this bound rejects a quarter.
  EXPECT_THAT(draw(42, 6917529027641094201u, 8),
              ElementsAre(5353863432004277189u, 3035954346590655762u, 5939376034059252148u,
                          4824063583967007957u, 651474537759069506u, 6748895937462726240u,
                          5265205982608359006u, 5437622649345859231u));
}

}  // namespace
}  // namespace cedar::model
