#pragma once
// tokenizer.json: byte-level BPE with added tokens (spec/chat.md section 1).

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "model/utf8.h"

namespace cedar::model {

/// Immutable after load; safe to share between threads.
class Tokenizer {
 public:
  /// Errors: not_found, io_error, invalid_config naming what in the file is not understood (another
  /// model type, an unknown pre-tokenizer, a merge whose result is not in the vocabulary ...).
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& path);
  static Result<std::shared_ptr<const Tokenizer>> parse(std::string_view json_text);
  ~Tokenizer();

  /// Ill-formed UTF-8 in `text` is read as U+FFFD per maximal ill-formed part. With `added_tokens`
  /// off, added tokens spelled in the text are encoded as ordinary text (spec/chat.md 2.11).
  std::vector<TokenId> encode(std::string_view text, bool added_tokens = true) const;

  /// All bytes joined, then decoded once: ill-formed parts become U+FFFD per maximal subpart. Ids
  /// that do not exist are skipped (the engine cannot produce them; HTTP input is checked before).
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  /// Raw bytes of one token (may be no valid UTF-8 alone); added tokens give their spelling. Empty
  /// if unknown.
  std::string_view token_bytes(TokenId id) const;
  /// The raw vocabulary string (byte alphabet) of an ordinary token, or an added token's spelling.
  std::string_view vocabulary_string(TokenId id) const;
  bool is_added(TokenId id) const;
  bool is_special(TokenId id) const;
  bool contains(TokenId id) const;
  /// -1 when no added token has this spelling.
  TokenId added_token_id(std::string_view spelling) const;
  /// One more than the largest id.
  int64_t size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

/// Incremental decoding (spec/chat.md 1.4): bytes of an incomplete character are held back, at most
/// three. The pieces and the flush join to the plain decode.
class TokenTextStream {
 public:
  explicit TokenTextStream(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = false)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}
  /// Text that is settled after this token; may be empty.
  std::string push(TokenId id);
  /// The end: a held-back prefix becomes one U+FFFD.
  std::string flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  Utf8Stream text_;
};

}  // namespace cedar::model
