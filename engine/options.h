#pragma once

#include <cstdint>
#include <memory>

#include "core/device.h"
#include "core/host_memory.h"
#include "kernels/index_score.h"

namespace cedar::engine {

class IndexService;

namespace structured {
class Constraints;
}

/// How a half rebuilds windows whose rows were computed elsewhere (spec/ced.md 3, 4, 7).
enum class ReplayMode : uint8_t {
  bounded,  // from the last `window` rows: what the release does; approximate
  exact,  // from (window - 1) rows a layer before the first one that is kept: equal to a full prefill
};

struct NumericOptions {
  kernels::IndexScoreMode index_score = kernels::IndexScoreMode::fp32;
  /// Reproduces the released reference's defect (spec/model.md 14.1): on steps that complete no group, a
  /// ratio > 1 index source scores against the keys of the last ratio-1 source. Wrong; for comparison only.
  bool compat_stale_index_key = false;
};

struct EngineOptions {
  Device device;
  int threads = 1;
  int64_t kv_pool_blocks =
      0;  // pages of one engine's pool; 0: enough for one sequence of full length
  int32_t max_sequences = 8;                // sequence slots of one engine
  int64_t prefill_chunk_tokens = 512;       // rows of one encoder step, over all requests in it
  int64_t max_context_tokens = 0;           // 0: the model's max_position_embeddings
  ReplayMode replay = ReplayMode::bounded;  // of the decoder half, from the encoder's last rows
  /// Of the encoder half, behind cached blocks. Exact: a cache changes nothing but the time (decision 16).
  ReplayMode resume = ReplayMode::exact;
  NumericOptions numeric;
  /// GPU: decode steps without replayed prompt rows are recorded once a shape and replayed. The same bits as launches.
  bool decode_graphs = true;
  kernels::CudaLevel cuda_level = kernels::CudaLevel::hopper;  // GPU: the most to use
  /// Of the model's vocabulary. Without it, requests that constrain their output are refused.
  std::shared_ptr<structured::Constraints> constraints;
  /// Memory of the blocks that a prefill engine shows (PrefillEngine::block); null: ordinary memory.
  std::shared_ptr<HostMemorySource> block_memory;
  /// Takes over index keys of sequences of at least so many tokens (engine/index_service.h); null or 0: of none.
  std::shared_ptr<IndexService> index_service;
  int64_t index_service_min_tokens = 0;
};

}  // namespace cedar::engine
