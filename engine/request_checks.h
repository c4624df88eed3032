#pragma once
// What both engines check of a request, and how its rows become part of a batch.

#include <cstdint>
#include <span>
#include <vector>

#include "core/float_formats.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/sequence_store.h"
#include "engine/step_batch.h"

namespace cedar::engine {

struct ImageRows;

/// Errors: invalid_argument (empty, or an id outside the vocabulary: names index and id).
Status check_prompt(const model::ModelConfig& config, std::span<const TokenId> tokens);

/// Errors: context_too_long naming need and capacity, when the request could not fit even an idle engine.
Status check_capacity(const EngineOptions& options, const SequenceStore& store, int64_t tokens,
                      int64_t blocks);

/// Tokens before position `start` that n-grams look back at.
int64_t ngram_look_back(const model::ModelConfig& config, Position start);

/// Rows [start, start + rows) of `tokens`, with the n-gram history before them; without a slot, or with one.
BatchSequence make_sequence(const model::ModelConfig& config, std::span<const TokenId> tokens,
                            Position start, int64_t rows);
BatchSequence make_sequence(const LoadedModel& model, SequenceSlot slot,
                            std::span<const TokenId> tokens, Position start, int64_t rows);

/// Appends, for positions [start, start + rows), the index of the image row that replaces each embedding
/// (-1: none) and the rows themselves.
void append_image_rows(std::span<const ImageRows> images, int64_t hidden, Position start,
                       int64_t rows, std::vector<int32_t>& override_index,
                       std::vector<Bf16>& values);

}  // namespace cedar::engine
