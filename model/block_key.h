#pragma once
// The key of a KV block: SHA-256 chained over everything its bytes depend on
// (docs/formats/kv_block.md). Two sequences share a block exactly when model, tenant, and all
// tokens and images up to the block's end agree. Built with the cluster only (target
// cedar_model_keys).

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "model/checkpoint.h"

namespace cedar::model {

using Sha256 = std::array<uint8_t, 32>;
Sha256 sha256(std::span<const uint8_t> bytes);

struct BlockKey {
  Sha256 digest{};
  friend constexpr auto operator<=>(const BlockKey&, const BlockKey&) = default;
  std::string hex() const;
};

/// Where an image lies in a sequence, delimiters included, and what its pixels are.
struct ImageDigest {
  int64_t begin = 0;  // token position
  int64_t end = 0;    // exclusive
  Sha256 content{};
};

/// The parent of every sequence's first block. `tenant_salt` may be any bytes; tenants with
/// different salts never share blocks, and cannot probe each other's.
BlockKey root_key(const Sha256& model_fingerprint, std::string_view tenant_salt);

/// Key of the block of `tokens` that begins at position `begin`. `images` are those of the whole
/// sequence; the ones that overlap the block count.
BlockKey next_key(const BlockKey& parent, int64_t begin, std::span<const TokenId> tokens,
                  std::span<const ImageDigest> images);

/// Keys of the whole blocks of a sequence, oldest first; an unfinished last block has none.
/// REQUIRES: block_tokens > 0.
std::vector<BlockKey> block_keys(const BlockKey& root, std::span<const TokenId> tokens,
                                 std::span<const ImageDigest> images, int64_t block_tokens);

/// Identifies what global KV is computed with: the config, `numeric_mode` (settings that change
/// values, such as the rounding of index scores), and of every tensor that the encoder role needs,
/// its name, dtype, shape and a sample of its bytes. Equal for every role of one checkpoint. The
/// sample tells checkpoints apart that were trained apart; it is no proof against a few changed
/// bytes, for which operators put a revision into `numeric_mode`. Reads one page per tensor.
Sha256 model_fingerprint(const Checkpoint& checkpoint, std::string_view numeric_mode);

}  // namespace cedar::model

template <>
struct std::hash<cedar::model::BlockKey> {
  size_t operator()(const cedar::model::BlockKey& key) const noexcept {
    size_t value = 0;  // the digest is uniform already
    std::memcpy(&value, key.digest.data(), sizeof value);
    return value;
  }
};
