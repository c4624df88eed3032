#include "engine/runtime.h"

#include <algorithm>
#include <string>

#include "core/units.h"
#include "engine/loaded_model.h"

namespace cedar::engine {
namespace {

/// Default budget of a pool that nobody sized: generous for small models, one full context for large ones.
constexpr int64_t kDefaultPoolBytes = int64_t{1} << 30;

Error below_one(const char* field, int64_t value) {
  return make_error(Errc::invalid_argument,
                    std::string(field) + ": must be at least 1, got " + std::to_string(value));
}

}  // namespace

Result<EngineOptions> complete_options(const EngineOptions& options, const LoadedModel& model) {
  EngineOptions out = options;
  CEDAR_CHECK_OK(check_device(out.device));
  if (out.device != model.device) {
    return make_error(Errc::invalid_argument, "device: the engine is to run on " +
                                                  to_string(out.device) + ", the weights are on " +
                                                  to_string(model.device));
  }
  if (out.threads < 1) return below_one("threads", out.threads);
  if (out.max_sequences < 1) return below_one("max_sequences", out.max_sequences);
  if (out.prefill_chunk_tokens < 1) {
    return below_one("prefill_chunk_tokens", out.prefill_chunk_tokens);
  }
  const int64_t longest = model.config.max_position_embeddings;
  if (out.max_context_tokens == 0) out.max_context_tokens = longest;
  if (out.max_context_tokens < 1 || out.max_context_tokens > longest) {
    return make_error(Errc::invalid_argument, "max_context_tokens: must be in [1, " +
                                                  std::to_string(longest) + "], got " +
                                                  std::to_string(out.max_context_tokens));
  }
  if (out.kv_pool_blocks < 0) return below_one("kv_pool_blocks", out.kv_pool_blocks);
  if (out.kv_pool_blocks == 0) {
    const int64_t full = ceil_div(out.max_context_tokens, model.layout.block_tokens);
    const int64_t affordable = kDefaultPoolBytes / model.layout.block_bytes;
    out.kv_pool_blocks = std::max(full, std::min(full * out.max_sequences, affordable));
  }
  return out;
}

}  // namespace cedar::engine
