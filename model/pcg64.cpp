#include "model/pcg64.h"

#include <array>

#include "core/check.h"

namespace cedar::model {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr uint32_t kXorShift = 16;

constexpr Wide wide(uint64_t high, uint64_t low) { return (Wide{high} << 64) | low; }
constexpr Wide kMultiplier = wide(0x2360ED051FC65DA4, 0x4385DF649FCCF645);

/// SeedSequence's hash: a multiplier that changes with every word that passes.
class WordHash {
 public:
  WordHash(uint32_t start, uint32_t factor) : multiplier_(start), factor_(factor) {}
  uint32_t operator()(uint32_t word) {
    word ^= multiplier_;
    multiplier_ *= factor_;
    word *= multiplier_;
    return word ^ (word >> kXorShift);
  }

 private:
  uint32_t multiplier_;
  uint32_t factor_;
};

uint32_t mix(uint32_t a, uint32_t b) {
  const uint32_t mixed = 0xCA01F9DDu * a - 0x4973F715u * b;
  return mixed ^ (mixed >> kXorShift);
}

/// SeedSequence(seed).generate_state(4, uint64) for a seed of one word.
std::array<uint64_t, 4> seed_words(uint32_t seed) {
  std::array<uint32_t, 4> pool{};
  WordHash in(0x43B0D7E5u, 0x931E8875u);
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = in(i == 0 ? seed : 0);
  for (size_t source = 0; source < pool.size(); ++source) {
    for (size_t target = 0; target < pool.size(); ++target) {
      if (source != target) pool[target] = mix(pool[target], in(pool[source]));
    }
  }
  std::array<uint64_t, 4> words{};
  WordHash out(0x8B51F9DDu, 0x58F38DEDu);
  for (size_t i = 0; i < 2 * words.size(); ++i) {
    words[i / 2] |= uint64_t{out(pool[i % pool.size()])} << (32 * (i % 2));
  }
  return words;
}

}  // namespace

Pcg64::Pcg64(uint32_t seed) {
  const std::array<uint64_t, 4> words = seed_words(seed);
  increment_ = (wide(words[2], words[3]) << 1) | 1;
  step();
  state_ += wide(words[0], words[1]);
  step();
}

void Pcg64::step() { state_ = state_ * kMultiplier + increment_; }

uint64_t Pcg64::next() {
  step();
  const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
  const unsigned rotation = static_cast<unsigned>(state_ >> 122);
  return (folded >> rotation) | (folded << (-rotation & 63));
}

uint64_t Pcg64::below(uint64_t bound) {
  CEDAR_ASSERT(bound >> 32 != 0, "bound " + std::to_string(bound));
  Wide product = Wide{next()} * bound;
  // Products whose low half falls under 2^64 mod bound are drawn again: they would favour some
  // results.
  const uint64_t threshold = -bound % bound;
  while (static_cast<uint64_t>(product) < threshold) product = Wide{next()} * bound;
  return static_cast<uint64_t>(product >> 64);
}

}  // namespace cedar::model
