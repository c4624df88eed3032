#include "model/image_span.h"

#include <algorithm>
#include <string>

namespace cedar::model {

std::vector<ImageTokenType> image_span_types(ImageGrid grid) {
  std::vector<ImageTokenType> types;
  types.reserve(static_cast<size_t>(grid.span_tokens()));
  types.push_back(ImageTokenType::start);
  for (int64_t row = 0; row < grid.rows; ++row) {
    types.insert(types.end(), static_cast<size_t>(grid.columns), ImageTokenType::image);
    types.push_back(ImageTokenType::newline);
  }
  types.push_back(ImageTokenType::end);
  return types;
}

Result<ImagePrompt> expand_image_placeholders(std::span<const TokenId> tokens, TokenId image_token,
                                              std::span<const ImageGrid> grids) {
  const auto placeholders = std::count(tokens.begin(), tokens.end(), image_token);
  if (placeholders != static_cast<std::ptrdiff_t>(grids.size())) {
    return make_error(Errc::invalid_argument,
                      "images: the prompt has " + std::to_string(placeholders) +
                          " image placeholders for " + std::to_string(grids.size()) + " images");
  }
  ImagePrompt prompt;
  prompt.tokens.reserve(tokens.size());
  for (const TokenId token : tokens) {
    if (token != image_token) {
      prompt.tokens.push_back(token);
      continue;
    }
    const ImageGrid grid = grids[prompt.spans.size()];
    if (grid.rows <= 0 || grid.columns <= 0) {
      return make_error(Errc::invalid_argument, "images[" + std::to_string(prompt.spans.size()) +
                                                    "]: empty grid " + std::to_string(grid.rows) +
                                                    "x" + std::to_string(grid.columns));
    }
    prompt.spans.push_back({static_cast<Position>(prompt.tokens.size()), grid});
    prompt.tokens.insert(prompt.tokens.end(), static_cast<size_t>(grid.span_tokens()), image_token);
  }
  return prompt;
}

}  // namespace cedar::model
