#pragma once
// Workspace of one step: bump allocation, freed as a whole. Grows to the largest step seen and stays there.
// Not thread-safe: one arena belongs to one KernelContext.

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"

namespace cedar {

class Arena {
 public:
  explicit Arena(Device device, int64_t chunk_bytes = int64_t{1} << 20);

  /// Uninitialised, 64-byte aligned, valid until the enclosing reset() or rewind(). Running out of
  /// memory is fatal: budgets are checked when a step is admitted.
  void* allocate_bytes(int64_t bytes);

  template <class T>
  T* allocate(int64_t count) {
    return static_cast<T*>(allocate_bytes(count * static_cast<int64_t>(sizeof(T))));
  }

  struct Mark {
    size_t chunk = 0;
    int64_t used = 0;
  };
  Mark mark() const { return {current_, used_}; }
  /// Frees everything allocated since `mark`.
  void rewind(Mark mark);
  /// Frees everything, and merges the chunks so that the next step needs one.
  void reset();

  int64_t capacity_bytes() const;
  /// Changes whenever memory was taken from the device or given back: while it stays, the same allocations since a
  /// reset() give the same addresses.
  uint64_t generation() const { return generation_; }

 private:
  Device device_;
  int64_t chunk_bytes_;
  std::vector<Buffer> chunks_;
  size_t current_ = 0;
  int64_t used_ = 0;  // of chunks_[current_]
  uint64_t generation_ = 0;
};

/// Frees on scope exit what was allocated inside the scope.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), mark_(arena.mark()) {}
  ~ArenaScope() { arena_.rewind(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  Arena::Mark mark_;
};

}  // namespace cedar
