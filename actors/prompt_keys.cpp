#include "actors/prompt_keys.h"

#include <span>

#include "core/check.h"

namespace cedar::actors {
namespace {

std::span<const uint8_t> octets(const void* data, size_t bytes) {
  return {static_cast<const uint8_t*>(data), bytes};
}

}  // namespace

PromptKeys::PromptKeys(const std::string& fingerprint, const GenerateRequest& request,
                       int64_t block_tokens)
    : block_tokens_(block_tokens) {
  CEDAR_ASSERT(block_tokens > 0, std::to_string(block_tokens));
  for (const engine::ImageRows& image : request.images) {
    images_.push_back({image.position, image.position + image.rows,
                       model::sha256(octets(image.values.data(),
                                            image.values.size() * sizeof(image.values[0])))});
  }
  keys_.push_back(model::root_key(model::sha256(octets(fingerprint.data(), fingerprint.size())),
                                  request.cache_salt));
  append(request.decode.prompt);
  append(request.decode.emitted);
}

void PromptKeys::append(const std::vector<TokenId>& tokens) {
  rest_.insert(rest_.end(), tokens.begin(), tokens.end());
  extend();
}

void PromptKeys::extend() {
  const auto block = static_cast<size_t>(block_tokens_);
  size_t done = 0;
  for (; done + block <= rest_.size(); done += block) {
    keys_.push_back(model::next_key(keys_.back(), blocks() * block_tokens_,
                                    std::span(rest_).subspan(done, block), images_));
  }
  rest_.erase(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(done));
}

std::vector<model::BlockKey> PromptKeys::of(int64_t first, int64_t end) const {
  CEDAR_ASSERT(first >= 0 && first <= end && end <= blocks(), std::to_string(end));
  return {keys_.begin() + first + 1, keys_.begin() + end + 1};
}

std::vector<model::BlockKey> PromptKeys::chain(int64_t first, int64_t end) const {
  CEDAR_ASSERT(first >= 0 && first <= end && end <= blocks(), std::to_string(end));
  return {keys_.begin() + first, keys_.begin() + end + 1};
}

}  // namespace cedar::actors
