#pragma once
// Shapes, primes and multipliers of the Engram tables (spec/model.md 9.2), from the config alone,
// and the hashing of n-grams to table rows (9.3). Pure; no table data here.

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "model/model_config.h"

namespace cedar::model {

/// Marks an image-span position in a history of compressed ids: no n-gram crosses it.
constexpr int32_t kDeadToken = -1;

struct EngramLayerLayout {
  LayerId layer = 0;
  std::vector<int64_t> primes;       // [columns], column = (order - 2) * heads + head
  std::vector<int64_t> offsets;      // [columns] first row of the column's bucket range
  std::vector<int64_t> multipliers;  // [max_ngram], look-back 0 first
  int64_t rows = 0;                  // sum of the primes = engram_num_embeddings
};

struct EngramLayout {
  std::vector<EngramLayerLayout> layers;
  int64_t columns = 0;
  int64_t max_ngram = 0;

  /// Row ids of consecutive tokens, [compressed.size(), columns] into `rows`. `history` holds the
  /// compressed ids before the first token, oldest first, as many as exist up to max_ngram - 1
  /// (kDeadToken included); `pad` is the compressed id of the pad token. Longer histories are
  /// allowed, their oldest ids do not count.
  /// REQUIRES: ids are kDeadToken or in [0, engram_compressed_vocab_size).
  void hash(const EngramLayerLayout& layer, std::span<const int32_t> history,
            std::span<const int32_t> compressed, int32_t pad, int64_t* rows) const;
};

/// Without Engram layers the layout is empty.
/// Errors: invalid_config when the primes of a layer do not sum to engram_num_embeddings.
Result<EngramLayout> make_engram_layout(const ModelConfig& config);

/// The compression map of spec/model.md 9.1: token id -> compressed id, built from a tokenizer.
class TokenCompression {
 public:
  TokenCompression() = default;
  TokenCompression(std::vector<int32_t> map, int32_t distinct)
      : map_(std::move(map)), distinct_(distinct) {}
  /// REQUIRES: 0 <= id < size().
  int32_t operator[](TokenId id) const { return map_[static_cast<size_t>(id)]; }
  int64_t size() const { return static_cast<int64_t>(map_.size()); }
  int32_t distinct() const { return distinct_; }
  const std::vector<int32_t>& map() const { return map_; }

 private:
  std::vector<int32_t> map_;
  int32_t distinct_ = 0;
};

class Tokenizer;
/// Errors: invalid_config when the number of distinct keys is not engram_compressed_vocab_size.
Result<TokenCompression> make_token_compression(const Tokenizer& tokenizer,
                                                const ModelConfig& config);

}  // namespace cedar::model
