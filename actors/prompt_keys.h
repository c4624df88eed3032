#pragma once
// The keys of a sequence's whole KV blocks, from its first token on, growing with the answer.

#include <string>
#include <vector>

#include "actors/client.h"
#include "model/block_key.h"

namespace cedar::actors {

class PromptKeys {
 public:
  /// `fingerprint` is of the model that computes the blocks; a request's salt and images count. Hashes the whole prompt:
  /// milliseconds for a million tokens.
  PromptKeys(const std::string& fingerprint, const GenerateRequest& request, int64_t block_tokens);

  /// Appends tokens of the answer.
  void append(const std::vector<TokenId>& tokens);

  int64_t blocks() const { return static_cast<int64_t>(keys_.size()) - 1; }
  int64_t block_tokens() const { return block_tokens_; }
  /// Keys of blocks [first, end). REQUIRES: end <= blocks().
  std::vector<model::BlockKey> of(int64_t first, int64_t end) const;
  /// The same behind the key before the first of them.
  std::vector<model::BlockKey> chain(int64_t first, int64_t end) const;

 private:
  void extend();

  int64_t block_tokens_;
  std::vector<model::ImageDigest> images_;
  std::vector<model::BlockKey> keys_;  // the root first
  std::vector<TokenId> rest_;          // tokens behind the last whole block
};

}  // namespace cedar::actors
