#include "engine/engram_rows.h"

#include <algorithm>

#include "core/check.h"

namespace cedar::engine {

std::vector<int64_t> engram_row_ids(const LoadedModel& model, LayerId layer,
                                    std::span<const BatchSequence> sequences) {
  const auto& layouts = model.engram.layers;
  const auto layout =
      std::find_if(layouts.begin(), layouts.end(), [&](const auto& l) { return l.layer == layer; });
  CEDAR_ASSERT(layout != layouts.end(), "layer " + std::to_string(layer));
  const auto compressed = [&](TokenId token) {
    return model.is_image(token) ? model::kDeadToken : model.compression[token];
  };
  int64_t rows = 0;
  for (const BatchSequence& sequence : sequences) rows += sequence.rows();
  std::vector<int64_t> row_ids(static_cast<size_t>(rows * model.engram.columns));
  std::vector<int32_t> history, current;
  int64_t* out = row_ids.data();
  for (const BatchSequence& sequence : sequences) {
    history.clear();
    current.clear();
    for (const TokenId token : sequence.history) history.push_back(compressed(token));
    for (const TokenId token : sequence.tokens) current.push_back(compressed(token));
    model.engram.hash(*layout, history, current,
                      model.compression[model.config.engram_pad_token_id], out);
    out += sequence.rows() * model.engram.columns;
  }
  return row_ids;
}

void prefetch_engram(const LoadedModel& model, model::LayerRange layers,
                     std::span<const BatchSequence> sequences, EngramSource& source) {
  if (!source.wants_prefetch() || sequences.empty()) return;
  for (const auto& layout : model.engram.layers) {
    if (!layers.contains(layout.layer)) continue;
    source.prefetch(layout.layer, engram_row_ids(model, layout.layer, sequences));
  }
}

}  // namespace cedar::engine
