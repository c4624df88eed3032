#pragma once
// Bounds over all connections: of the request bodies that are being read or parsed, and of the answers that wait for
// their readers.

#include <atomic>
#include <cstdint>
#include <utility>

namespace cedar::gateway {

/// Thread-safe.
class BodyBudget {
 public:
  explicit BodyBudget(int64_t max_bytes) : max_bytes_(max_bytes) {}

  bool take(int64_t bytes) {
    if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= max_bytes_) return true;
    give_back(bytes);
    return false;
  }
  void give_back(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  const int64_t max_bytes_;
  std::atomic<int64_t> used_{0};
};

/// What one body holds of the budget. May end on any thread.
class BodyLease {
 public:
  /// Not counted, per body: whoever holds all of the budget cannot keep ordinary requests out.
  static constexpr int64_t kFreeBytes = 64 << 10;

  explicit BodyLease(BodyBudget& budget) : budget_(&budget) {}
  BodyLease(BodyLease&& other) noexcept
      : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
  BodyLease& operator=(BodyLease&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~BodyLease() { release(); }

  /// The body has `bytes` now. False: there is no room for them, the lease stays as it was.
  bool grow_to(int64_t bytes) {
    const int64_t counted = bytes - kFreeBytes;
    if (counted <= bytes_) return true;
    if (!budget_->take(counted - bytes_)) return false;
    bytes_ = counted;
    return true;
  }
  void release() { budget_->give_back(std::exchange(bytes_, 0)); }

 private:
  BodyBudget* budget_;
  int64_t bytes_ = 0;
};

}  // namespace cedar::gateway
