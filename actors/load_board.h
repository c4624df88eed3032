#pragma once
// What the actors of one process are doing, readable without asking them. Each value has one writer.

#include <atomic>
#include <cstdint>

namespace cedar::actors {

struct LoadBoard {
  // router
  std::atomic<bool> ready{false};
  std::atomic<int64_t> queued{0};
  std::atomic<int64_t> running{0};
  // encoder stage
  std::atomic<int64_t> encoder_requests{0};
  std::atomic<int64_t> encoder_queued_tokens{0};
  std::atomic<int64_t> encoder_free_blocks{0};
  // decoder stage
  std::atomic<int64_t> decoder_sequences{0};
  std::atomic<int64_t> decoder_free_blocks{0};
  std::atomic<int64_t> decoder_total_blocks{0};
  std::atomic<int64_t> decoder_staging_slots{0};  // being written to, or not known to be finished
};

}  // namespace cedar::actors
