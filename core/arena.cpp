#include "core/arena.h"

#include <algorithm>

#include "core/units.h"

namespace cedar {

Arena::Arena(Device device, int64_t chunk_bytes) : device_(device), chunk_bytes_(chunk_bytes) {}

void* Arena::allocate_bytes(int64_t bytes) {
  const int64_t padded = align_up(std::max<int64_t>(bytes, 1), Buffer::kAlignment);
  while (current_ < chunks_.size() && used_ + padded > chunks_[current_].bytes()) {
    ++current_;
    used_ = 0;
  }
  if (current_ == chunks_.size()) {
    auto chunk = Buffer::allocate(device_, std::max(padded, chunk_bytes_));
    CEDAR_ASSERT(chunk.has_value(), chunk.has_value() ? std::string() : chunk.error().message());
    chunks_.push_back(std::move(*chunk));
    ++generation_;
    used_ = 0;
  }
  void* p = chunks_[current_].data() + used_;
  used_ += padded;
  return p;
}

void Arena::rewind(Mark mark) {
  current_ = mark.chunk;
  used_ = mark.used;
}

void Arena::reset() {
  if (chunks_.size() > 1) {
    chunk_bytes_ = std::max(chunk_bytes_, capacity_bytes());
    chunks_.clear();
    ++generation_;
  }
  current_ = 0;
  used_ = 0;
}

int64_t Arena::capacity_bytes() const {
  int64_t total = 0;
  for (const Buffer& chunk : chunks_) total += chunk.bytes();
  return total;
}

}  // namespace cedar
