#pragma once
// One step of the reading half: which rows of which prompts. Says all that the engines of a pipeline need to know of a
// prompt, so that only the first of them keeps prompts.

#include <cstdint>
#include <vector>

#include "core/float_formats.h"
#include "core/ids.h"

namespace cedar::engine {

/// Consecutive rows of one prompt.
struct PrefillRows {
  RequestId id;
  Position length = 0;           // of the whole prompt
  Position start = 0;            // of the first row
  std::vector<TokenId> tokens;   // of the rows
  std::vector<TokenId> history;  // before them, oldest first: what n-grams look back at

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  Position end() const { return start + rows(); }
  bool finishes() const { return end() == length; }
};

struct PrefillChunk {
  std::vector<PrefillRows> parts;

  int64_t rows() const {
    int64_t rows = 0;
    for (const PrefillRows& part : parts) rows += part.rows();
    return rows;
  }
};

/// Rows that replace embeddings in a chunk. Both empty: none does.
struct ChunkImages {
  std::vector<int32_t> override_index;  // [rows], -1: the token's own
  std::vector<Bf16> rows;               // [overrides, hidden]
};

}  // namespace cedar::engine
