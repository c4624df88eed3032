#include "actors/cache_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <set>

namespace cedar::actors {
namespace {

model::BlockKey key(int n) {
  model::BlockKey result;
  result.digest[0] = static_cast<uint8_t>(n);
  result.digest[1] = static_cast<uint8_t>(n >> 8);
  return result;
}
std::vector<model::BlockKey> keys(std::initializer_list<int> numbers) {
  std::vector<model::BlockKey> result;
  for (const int n : numbers) result.push_back(key(n));
  return result;
}

/// A chain of blocks `first`, `first` + 1, ...; its root is not in the cache.
void store_chain(CacheTier& tier, int first, int count) {
  for (int i = 0; i < count; ++i) tier.store(key(first + i), key(first + i - 1), i);
}

TEST(CacheTier, FindsTheLongestPrefixAndStopsAtTheFirstGap) {
  CacheTier tier(8);
  store_chain(tier, 11, 3);
  EXPECT_EQ(tier.pin_prefix(keys({11, 12, 13, 14})).size(), 3U);
  EXPECT_TRUE(tier.pin_prefix(keys({10, 11})).empty());
  EXPECT_EQ(tier.pin_prefix(keys({11, 99, 12})).size(), 1U);
  EXPECT_EQ(tier.pinned_blocks(), 3);
}

TEST(CacheTier, AKeyHasOneSlot) {
  CacheTier tier(8);
  const auto slot = tier.store(key(1), key(0), 0);
  ASSERT_TRUE(slot);
  EXPECT_FALSE(tier.store(key(1), key(0), 0));
  EXPECT_EQ(tier.pin_prefix(keys({1})), std::vector<int64_t>{*slot});
}

TEST(CacheTier, TheEndOfAChainGoesBeforeItsBeginning) {
  CacheTier tier(3);
  store_chain(tier, 11, 3);
  EXPECT_TRUE(tier.store(key(50), key(49), 0));
  EXPECT_FALSE(tier.has(key(13)));
  EXPECT_TRUE(tier.has(key(11)) && tier.has(key(12)));
  // The same when the blocks came the other way round.
  CacheTier backwards(3);
  for (int i = 2; i >= 0; --i) backwards.store(key(11 + i), key(10 + i), i);
  EXPECT_TRUE(backwards.store(key(50), key(49), 0));
  EXPECT_FALSE(backwards.has(key(13)));
  EXPECT_TRUE(backwards.has(key(11)) && backwards.has(key(12)));
}

TEST(CacheTier, ABlockNeverMakesRoomForItsOwnContinuation) {
  CacheTier tier(1);
  EXPECT_TRUE(tier.store(key(1), key(0), 0));
  EXPECT_FALSE(tier.store(key(2), key(1), 1));
  EXPECT_TRUE(tier.has(key(1)));
  EXPECT_TRUE(tier.store(key(7), key(6), 0));  // it may go for another one
}

TEST(CacheTier, WhatIsUsedStaysLonger) {
  CacheTier tier(4);
  store_chain(tier, 11, 2);
  store_chain(tier, 21, 2);
  for (const auto& k : keys({11, 12})) tier.pin_prefix(std::vector{k});
  tier.unpin(key(11));
  tier.unpin(key(12));
  store_chain(tier, 31, 2);
  EXPECT_TRUE(tier.has(key(11)) && tier.has(key(12)));
  EXPECT_FALSE(tier.has(key(21)));
  // Old fame fades: what nobody asks for any more goes in the end.
  for (int i = 0; i < 100; ++i) tier.store(key(1000 + 10 * i), key(999 + 10 * i), 0);
  EXPECT_FALSE(tier.has(key(12)));
}

TEST(CacheTier, PinnedBlocksStay) {
  CacheTier tier(2);
  store_chain(tier, 11, 2);
  tier.pin_prefix(keys({11, 12}));
  EXPECT_FALSE(tier.store(key(50), key(49), 0));
  tier.pin_prefix(keys({11}));
  tier.unpin(key(11));
  tier.unpin(key(11));
  EXPECT_FALSE(tier.store(key(50), key(49), 0));  // 12 continues it
  tier.unpin(key(12));
  EXPECT_TRUE(tier.store(key(50), key(49), 0));
  EXPECT_TRUE(tier.has(key(11)));
}

/// A cache that knows only when a block was used last. The end of a chain goes first there, too.
class LeastRecentlyUsed {
 public:
  explicit LeastRecentlyUsed(size_t slots) : slots_(slots) {}
  /// Looks a prompt's blocks up and keeps them all; how many leading ones were there.
  size_t use(const std::vector<model::BlockKey>& chain) {
    size_t found = 0;
    while (found < chain.size() && used_.count(chain[found]) != 0) ++found;
    for (size_t i = chain.size(); i-- > 0;) used_[chain[i]] = ++now_;
    while (used_.size() > slots_) {
      used_.erase(std::min_element(used_.begin(), used_.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      }));
    }
    return found;
  }

 private:
  size_t slots_;
  int64_t now_ = 0;
  std::map<model::BlockKey, int64_t> used_;
};

/// The same with the tier.
size_t use(CacheTier& tier, const std::vector<model::BlockKey>& chain) {
  const size_t found = tier.pin_prefix(chain).size();
  for (size_t i = 0; i < found; ++i) tier.unpin(chain[i]);
  for (size_t i = found; i < chain.size(); ++i) {
    tier.store(chain[i], i == 0 ? model::BlockKey{} : chain[i - 1], static_cast<int64_t>(i));
  }
  return found;
}

std::vector<model::BlockKey> run_of(int first, int count) {
  std::vector<model::BlockKey> chain;
  for (int i = 0; i < count; ++i) chain.push_back(key(first + i));
  return chain;
}

// Sessions of agents that begin with one instruction and grow with every turn; now and then someone reads a document once
// that is larger than the cache.
TEST(CacheTier, ADocumentThatIsReadOnceDoesNotPushOutWhatEverybodyUses) {
  constexpr size_t kSlots = 150;
  constexpr int kInstruction = 30, kSessions = 3, kTurns = 12, kGrowth = 2;
  CacheTier tier(kSlots);
  LeastRecentlyUsed plain(kSlots);
  const auto instruction = run_of(1, kInstruction);
  size_t found = 0, found_plain = 0, asked = 0;
  int next_document = 10000;
  for (int turn = 1; turn <= kTurns; ++turn) {
    for (int session = 0; session < kSessions; ++session) {
      std::vector<model::BlockKey> prompt = instruction;
      for (const auto& block : run_of(1000 * (session + 1), turn * kGrowth))
        prompt.push_back(block);
      found += use(tier, prompt);
      found_plain += plain.use(prompt);
      asked += prompt.size();
    }
    if (turn % 4 != 0) continue;
    const auto document = run_of(next_document, kSlots + 50);
    next_document += 1000;
    EXPECT_EQ(use(tier, document), 0U);
    EXPECT_EQ(plain.use(document), 0U);
    for (const auto& block : instruction) EXPECT_TRUE(tier.has(block)) << "turn " << turn;
    EXPECT_EQ(plain.use(instruction), 0U);  // a document is all that it has
  }
  std::printf("of %zu blocks asked for %zu were found, by the time of use alone %zu\n", asked,
              found, found_plain);
  EXPECT_GT(found, found_plain);
  EXPECT_GT(static_cast<double>(found), 0.8 * static_cast<double>(asked));
}

TEST(CacheTier, WithoutRoomNothingIsKept) {
  CacheTier tier(0);
  EXPECT_FALSE(tier.store(key(1), key(0), 0));
  EXPECT_TRUE(tier.pin_prefix(keys({1})).empty());
}

/// Against the rules themselves: no slot twice, pinned blocks stay, no block is lost from the middle of a chain.
TEST(CacheTier, RandomWork) {
  std::mt19937 random(5);
  CacheTier tier(20);
  std::map<int, int> pins;
  std::map<int64_t, int> slots;
  for (int round = 0; round < 20000; ++round) {
    const int chain = static_cast<int>(random() % 6) * 100 + 1;
    const int at = static_cast<int>(random() % 12);
    if (random() % 3 == 0) {
      if (const auto slot = tier.store(key(chain + at), key(chain + at - 1), at)) {
        ASSERT_LT(*slot, 20);
        slots[*slot] = chain + at;
      }
    } else if (random() % 2 == 0) {
      std::vector<model::BlockKey> wanted;
      for (int i = 0; i <= at; ++i) wanted.push_back(key(chain + i));
      const auto found = tier.pin_prefix(wanted);
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(slots[found[i]], chain + static_cast<int>(i));
        ++pins[chain + static_cast<int>(i)];
      }
    } else if (!pins.empty()) {
      auto pin = pins.begin();
      std::advance(pin, static_cast<std::ptrdiff_t>(random() % pins.size()));
      tier.unpin(key(pin->first));
      if (--pin->second == 0) pins.erase(pin);
    }
    for (const auto& [pinned, count] : pins) ASSERT_TRUE(tier.has(key(pinned)));
    ASSERT_LE(tier.blocks(), 20);
    ASSERT_EQ(tier.pinned_blocks(), static_cast<int64_t>(pins.size()));
  }
  EXPECT_GT(tier.evictions(), 100);
}

}  // namespace
}  // namespace cedar::actors
