#pragma once
// Where an image stands in the token sequence (spec/model.md 12.4):
//   [START] + ([IMAGE] * columns + [NEWLINE]) * rows + [END]
// Every position of a span carries the image token id and consumes one position.

#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/result.h"

namespace cedar::model {

/// Image tokens after the aligner, in reading order.
struct ImageGrid {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t span_tokens() const { return rows * (columns + 1) + 2; }
  friend bool operator==(ImageGrid, ImageGrid) = default;
};

enum class ImageTokenType : int8_t { text = -1, start = 0, image = 1, newline = 2, end = 3 };

/// The types of one span's positions, grid.span_tokens() of them.
std::vector<ImageTokenType> image_span_types(ImageGrid grid);

struct ImageSpan {
  Position position = 0;  // of START
  ImageGrid grid;
  Position end() const { return position + grid.span_tokens(); }
};

/// A prompt whose placeholders have been widened.
struct ImagePrompt {
  std::vector<TokenId> tokens;
  std::vector<ImageSpan> spans;  // in order; apart from each other, inside `tokens`
};

/// Replaces the i-th `image_token` of a tokenised prompt by the span of grids[i].
/// Errors: invalid_argument when placeholders and grids differ in number or a grid is empty.
Result<ImagePrompt> expand_image_placeholders(std::span<const TokenId> tokens, TokenId image_token,
                                              std::span<const ImageGrid> grids);

}  // namespace cedar::model
