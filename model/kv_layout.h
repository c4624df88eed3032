#pragma once
// The KV block byte by byte (design: docs/formats/kv_block.md). One block covers `block_tokens`
// tokens of one sequence and holds, for each KV source in layer order, its main KV rows, then its
// index-key rows.

#include <cstdint>
#include <vector>

#include "model/layer_plan.h"
#include "model/model_config.h"

namespace cedar::model {

/// Bytes of one row of main KV (E2M1, an E4M3 scale per 16), of one index key (E2M1, an E8M0 scale
/// per 32) and of one window row (E4M3, an E8M0 scale per 32). REQUIRES: a multiple of 32.
constexpr int64_t main_kv_row_bytes(int64_t head_dim) { return head_dim / 2 + head_dim / 16; }
constexpr int64_t index_key_row_bytes(int64_t index_head_dim) {
  return index_head_dim / 2 + index_head_dim / 32;
}
constexpr int64_t window_row_bytes(int64_t head_dim) { return head_dim + head_dim / 32; }

struct KvSourceLayout {
  LayerId layer = 0;
  int64_t ratio = 1;
  int64_t rows_per_block = 0;  // block_tokens / ratio
  int64_t main_offset = 0;     // bytes from the start of the block
  int64_t index_offset = 0;    // the main rows end here
};

struct KvLayout {
  int64_t block_tokens = 0;
  int64_t main_row_bytes = 0;
  int64_t index_row_bytes = 0;
  int64_t window_row_bytes = 0;
  int64_t block_bytes = 0;
  std::vector<KvSourceLayout> sources;

  double bytes_per_token() const {
    return static_cast<double>(block_bytes) / static_cast<double>(block_tokens);
  }
};

KvLayout make_kv_layout(const ModelConfig& config, const ModelPlan& plan);

}  // namespace cedar::model
