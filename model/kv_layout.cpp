#include "model/kv_layout.h"

namespace cedar::model {

// The release's rows, as docs/formats/kv_block.md draws them. Change both together.
static_assert(main_kv_row_bytes(512) == 288);
static_assert(index_key_row_bytes(128) == 68);
static_assert(window_row_bytes(512) == 528);
static_assert((3 * 64 + 128) * (main_kv_row_bytes(512) + index_key_row_bytes(128)) == 113'920);
static_assert(113'920 == 128 * 890);

KvLayout make_kv_layout(const ModelConfig& config, const ModelPlan& plan) {
  KvLayout layout;
  layout.block_tokens = config.block_tokens();
  layout.main_row_bytes = main_kv_row_bytes(config.head_dim);
  layout.index_row_bytes = index_key_row_bytes(config.index_head_dim);
  layout.window_row_bytes = window_row_bytes(config.head_dim);
  for (const KvSource& source : plan.kv_sources) {
    KvSourceLayout rows;
    rows.layer = source.layer;
    rows.ratio = source.ratio;
    rows.rows_per_block = layout.block_tokens / source.ratio;
    rows.main_offset = layout.block_bytes;
    rows.index_offset = rows.main_offset + rows.rows_per_block * layout.main_row_bytes;
    layout.block_bytes = rows.index_offset + rows.rows_per_block * layout.index_row_bytes;
    layout.sources.push_back(rows);
  }
  return layout;
}

}  // namespace cedar::model
