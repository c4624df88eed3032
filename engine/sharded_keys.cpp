#include "engine/sharded_keys.h"

#include <cstring>
#include <string>

namespace cedar::engine {

Result<ShardedKeys> ShardedKeys::create(const LoadedModel& model, SequenceStore& store,
                                        LayerId last, const EngineOptions& options) {
  IndexBlockLayout layout;
  layout.row_bytes = static_cast<int32_t>(model.layout.index_row_bytes);
  for (size_t i = 0; i < model.plan.kv_sources.size(); ++i) {
    if (model.plan.kv_sources[i].layer >= last) continue;
    layout.sources.push_back(
        {static_cast<int32_t>(i), static_cast<int32_t>(model.layout.sources[i].rows_per_block)});
  }
  const bool spreads = options.index_service != nullptr && options.index_service_min_tokens > 0 &&
                       !layout.sources.empty();
  if (spreads && model.device.kind != DeviceKind::cpu) {
    // A CPU's scores differ from a GPU's in the last bit, so a merged list would depend on who answered in time.
    return make_error(
        Errc::unsupported,
        "index_service_min_tokens: index keys can be spread with device = \"cpu\" alone");
  }
  for (const model::LayerPlan& plan : model.plan.layers) {
    if (!spreads || !plan.makes_candidates || plan.id >= last) continue;
    const int64_t rows = model.layout.block_tokens / plan.ratio;
    if (rows % model.config.candidate_block_size == 0) continue;
    return make_error(Errc::unsupported, "index_service_min_tokens: candidate_block_size = " +
                                             std::to_string(model.config.candidate_block_size) +
                                             " does not divide a KV block's " +
                                             std::to_string(rows) + " index keys");
  }
  return ShardedKeys(store, spreads ? options.index_service : nullptr,
                     options.index_service_min_tokens, std::move(layout));
}

ShardedKeys::~ShardedKeys() {
  if (service_ == nullptr) return;
  for (const auto& [slot, sequence] : sequences_) service_->close(sequence);
}

void ShardedKeys::finished(SequenceSlot slot, int64_t tokens, int64_t blocks) {
  if (service_ == nullptr || tokens < min_tokens_ || blocks == 0) return;
  auto found = sequences_.find(slot);
  if (found == sequences_.end()) found = sequences_.emplace(slot, service_->open(layout_)).first;
  std::vector<int32_t> wanted = service_->wanted(found->second, blocks);
  if (wanted.empty()) return;
  std::vector<std::byte> keys(wanted.size() * static_cast<size_t>(layout_.bytes()));
  std::byte* out = keys.data();
  const auto pages = store_->pages(slot);
  for (const int32_t block : wanted) {
    const std::byte* page = store_->pool().data(pages[static_cast<size_t>(block)]);
    for (const IndexBlockLayout::Source& s : layout_.sources) {
      const auto bytes = static_cast<size_t>(int64_t{s.rows_per_block} * layout_.row_bytes);
      std::memcpy(out, page + store_->index_rows(s.source).offset_bytes, bytes);
      out += bytes;
    }
  }
  service_->append(found->second, std::move(wanted), std::move(keys));
}

void ShardedKeys::close(SequenceSlot slot) {
  const auto found = sequences_.find(slot);
  if (found == sequences_.end()) return;
  service_->close(found->second);
  sequences_.erase(found);
}

const IndexSequence* ShardedKeys::find(SequenceSlot slot) const {
  const auto found = sequences_.find(slot);
  return found == sequences_.end() ? nullptr : &found->second;
}

}  // namespace cedar::engine
