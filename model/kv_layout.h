#pragma once
// The KV block byte by byte (design: docs/formats/kv_block.md). One block covers `block_tokens` tokens of one
// sequence and holds, for each KV source in layer order, its main KV rows, then its index-key rows.

#include <cstdint>
#include <vector>

#include "model/layer_plan.h"
#include "model/model_config.h"

namespace cedar::model {

struct KvSourceLayout {
  LayerId layer = 0;
  int64_t ratio = 1;
  int64_t rows_per_block = 0;     // block_tokens / ratio
  int64_t main_offset = 0;        // bytes from the start of the block
  int64_t index_offset = 0;
};

struct KvLayout {
  int64_t block_tokens = 0;
  int64_t main_row_bytes = 0;    // head_dim / 2 + head_dim / 16
  int64_t index_row_bytes = 0;   // index_head_dim / 2 + index_head_dim / 32
  int64_t window_row_bytes = 0;  // head_dim + head_dim / 32
  int64_t block_bytes = 0;
  std::vector<KvSourceLayout> sources;

  double bytes_per_token() const {
    return static_cast<double>(block_bytes) / static_cast<double>(block_tokens);
  }
};

KvLayout make_kv_layout(const ModelConfig& config, const ModelPlan& plan);

}  // namespace cedar::model
