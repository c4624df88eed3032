#include "model/engram_layout.h"

#include <limits>
#include <string>

#include "model/pcg64.h"

namespace cedar::model {
namespace {

constexpr uint32_t kSeedPerLayer = 10007;

bool is_prime(int64_t n) {
  if (n < 2) return false;
  for (int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return true;
}

/// Hands out the primes from `start` upward, each once.
class PrimeSequence {
 public:
  explicit PrimeSequence(int64_t start) : next_(start) {}
  int64_t take() {
    while (!is_prime(next_)) ++next_;
    return next_++;
  }

 private:
  int64_t next_;
};

/// Odd, and small enough that a product with any compressed id stays below 2^63.
std::vector<int64_t> draw_multipliers(LayerId layer, int64_t count, int64_t compressed_vocab) {
  const int64_t bound = std::numeric_limits<int64_t>::max() / compressed_vocab / 2;
  Pcg64 random(kSeedPerLayer * static_cast<uint32_t>(layer));
  std::vector<int64_t> multipliers;
  for (int64_t i = 0; i < count; ++i) {
    multipliers.push_back(2 * static_cast<int64_t>(random.below(static_cast<uint64_t>(bound))) + 1);
  }
  return multipliers;
}

}  // namespace

Result<EngramLayout> make_engram_layout(const ModelConfig& config) {
  EngramLayout layout;
  if (config.engram_layer_ids.empty()) return layout;
  layout.columns = config.engram_columns();
  layout.max_ngram = config.engram_max_ngram_size;
  PrimeSequence primes(config.engram_vocab_size);
  for (size_t i = 0; i < config.engram_layer_ids.size(); ++i) {
    EngramLayerLayout layer;
    layer.layer = config.engram_layer_ids[i];
    for (int64_t column = 0; column < layout.columns; ++column) {
      layer.offsets.push_back(layer.rows);
      layer.primes.push_back(primes.take());
      layer.rows += layer.primes.back();
    }
    const int64_t configured = config.engram_num_embeddings[i];
    if (layer.rows != configured) {
      return make_error(Errc::invalid_config,
                        "text_config.engram_num_embeddings[" + std::to_string(i) + "]: got " +
                            std::to_string(configured) + ", but the " +
                            std::to_string(layout.columns) + " primes from engram_vocab_size (" +
                            std::to_string(config.engram_vocab_size) + ") on sum to " +
                            std::to_string(layer.rows));
    }
    layer.multipliers =
        draw_multipliers(layer.layer, layout.max_ngram, config.engram_compressed_vocab_size);
    layout.layers.push_back(std::move(layer));
  }
  return layout;
}

void EngramLayout::hash(const EngramLayerLayout& layer, std::span<const int32_t> history,
                        std::span<const int32_t> compressed, int32_t pad, int64_t* rows) const {
  const int64_t heads = columns / (max_ngram - 1);
  const int64_t before = static_cast<int64_t>(history.size());
  // The id `position` tokens after the first; dead before the sequence began, like an image
  // position.
  const auto id_at = [&](int64_t position) {
    if (position >= 0) return compressed[static_cast<size_t>(position)];
    return position + before >= 0 ? history[static_cast<size_t>(position + before)] : kDeadToken;
  };
  for (int64_t i = 0; i < static_cast<int64_t>(compressed.size()); ++i) {
    uint64_t mixed = 0;
    bool cut = false;  // once a look-back meets a dead position, longer ones see the pad token
    for (int64_t back = 0; back < max_ngram; ++back) {
      const int32_t id = cut ? kDeadToken : id_at(i - back);
      cut = id == kDeadToken;
      mixed ^= static_cast<uint64_t>(cut ? pad : id) *
               static_cast<uint64_t>(layer.multipliers[static_cast<size_t>(back)]);
      if (back == 0) continue;
      for (int64_t head = 0; head < heads; ++head) {
        const size_t column = static_cast<size_t>((back - 1) * heads + head);
        *rows++ = static_cast<int64_t>(mixed % static_cast<uint64_t>(layer.primes[column])) +
                  layer.offsets[column];
      }
    }
  }
}

}  // namespace cedar::model
