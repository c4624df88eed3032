#include "engine/request_checks.h"

#include <algorithm>
#include <string>

#include "engine/prefill_engine.h"

namespace cedar::engine {

Status check_prompt(const model::ModelConfig& config, std::span<const TokenId> tokens) {
  if (tokens.empty()) return make_error(Errc::invalid_argument, "prompt: must not be empty");
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config.vocab_size) {
      return make_error(Errc::invalid_argument,
                        "prompt[" + std::to_string(i) + "]: token id " + std::to_string(tokens[i]) +
                            " is outside the vocabulary of " + std::to_string(config.vocab_size));
    }
  }
  return {};
}

Status check_capacity(const EngineOptions& options, const SequenceStore& store, int64_t tokens,
                      int64_t blocks) {
  if (tokens > options.max_context_tokens) {
    return make_error(Errc::context_too_long, std::to_string(tokens) +
                                                  " tokens needed, the context holds " +
                                                  std::to_string(options.max_context_tokens));
  }
  if (blocks > store.pool().total()) {
    return make_error(Errc::context_too_long, std::to_string(blocks) +
                                                  " KV blocks needed, the pool holds " +
                                                  std::to_string(store.pool().total()));
  }
  return {};
}

int64_t ngram_look_back(const model::ModelConfig& config, Position start) {
  return std::min<int64_t>(start, std::max<int64_t>(config.engram_max_ngram_size - 1, 0));
}

BatchSequence make_sequence(const model::ModelConfig& config, std::span<const TokenId> tokens,
                            Position start, int64_t rows) {
  BatchSequence sequence;
  sequence.start = start;
  const auto first = tokens.begin() + start;
  sequence.tokens.assign(first, first + rows);
  sequence.history.assign(first - ngram_look_back(config, start), first);
  return sequence;
}

BatchSequence make_sequence(const LoadedModel& model, SequenceSlot slot,
                            std::span<const TokenId> tokens, Position start, int64_t rows) {
  BatchSequence sequence = make_sequence(model.config, tokens, start, rows);
  sequence.slot = slot;
  return sequence;
}

void append_image_rows(std::span<const ImageRows> images, int64_t hidden, Position start,
                       int64_t rows, std::vector<int32_t>& override_index,
                       std::vector<Bf16>& values) {
  const size_t base = override_index.size();
  override_index.resize(base + static_cast<size_t>(rows), -1);
  for (const ImageRows& image : images) {
    const Position begin = std::max(start, image.position);
    const Position end = std::min(start + rows, image.position + image.rows);
    for (Position p = begin; p < end; ++p) {
      override_index[base + static_cast<size_t>(p - start)] =
          static_cast<int32_t>(static_cast<int64_t>(values.size()) / hidden);
      const auto row = image.values.begin() + (p - image.position) * hidden;
      values.insert(values.end(), row, row + hidden);
    }
  }
}

}  // namespace cedar::engine
