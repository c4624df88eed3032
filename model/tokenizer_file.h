#pragma once
// Reader of tokenizer.json. It accepts the one kind of tokenizer that the release uses (byte-level
// BPE with the three splitting regexes, spec/chat.md 1.1) with any vocabulary, and refuses whatever
// it would otherwise have to ignore.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/result.h"
#include "model/bpe.h"

namespace cedar::model {

enum class TokenKind : uint8_t { undefined, ordinary, added };

struct AddedToken {
  TokenId id = 0;
  std::string spelling;
  bool special = false;
  bool normalized = false;
};

struct TokenizerFile {
  // By id, 0 .. largest id.
  std::vector<TokenKind> kinds;
  std::vector<std::string> vocabulary;   // byte alphabet; an added token's spelling
  std::vector<std::string> token_bytes;  // raw bytes; an added token's spelling

  std::array<TokenId, 256> byte_tokens{};
  std::vector<MergeRule> merges;  // by rank
  std::vector<AddedToken> added;
};

/// Errors: invalid_config naming the key and the value that is not understood.
Result<TokenizerFile> read_tokenizer_file(std::string_view json_text);

}  // namespace cedar::model
