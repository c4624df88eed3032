#pragma once
// API keys: who a request comes from and how much it may ask for (docs/http.md). Keys are known by their SHA-256
// digests only; what a client presents is hashed, compared and forgotten.

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"
#include "gateway/error_mapping.h"
#include "gateway/options.h"

namespace cedar::gateway {

KeyDigest digest_of(std::string_view key);
/// 64 hexadecimal digits. Errors: invalid_argument, without the text.
Result<KeyDigest> parse_digest(std::string_view hex);

/// So much a minute on average: a bucket of one minute's worth that fills up all the time. May be overdrawn; what is
/// owed has to flow back before anything else is taken.
class MinuteBucket {
 public:
  using Clock = std::chrono::steady_clock;
  /// `per_minute` 0: without a bound.
  MinuteBucket(int64_t per_minute, Clock::time_point now)
      : capacity_(static_cast<double>(per_minute)), level_(capacity_), filled_(now) {}

  /// Seconds until `amount` is there; 0: it is.
  double wait_s(double amount, Clock::time_point now);
  void take(double amount) {
    if (capacity_ > 0) level_ -= amount;
  }

 private:
  double capacity_;
  double level_;
  Clock::time_point filled_;
};

/// One key and what it uses. Thread-safe.
class KeyAccount {
 public:
  using Clock = std::chrono::steady_clock;

  explicit KeyAccount(ApiKey key, Clock::time_point now = Clock::now());

  const std::string& name() const { return key_.name; }
  const KeyDigest& digest() const { return key_.digest; }

  /// Begins a request, or says (429, with the seconds to wait) why not. Every granted one ends with leave().
  std::optional<ApiError> enter(Clock::time_point now = Clock::now());
  void charge(int64_t tokens);
  void leave();

 private:
  const ApiKey key_;
  std::mutex
      mutex_;  // requests of several connections come here; nothing is called while it is held
  int64_t running_ = 0;
  MinuteBucket requests_;
  MinuteBucket tokens_;
};

/// A request's place in its key's account; empty where no keys are asked for. May end on any thread.
class KeyUse {
 public:
  KeyUse() = default;
  /// REQUIRES: `account` has granted an enter(). Null: empty.
  explicit KeyUse(KeyAccount* account) : account_(account) {}
  KeyUse(KeyUse&& other) noexcept : account_(std::exchange(other.account_, nullptr)) {}
  KeyUse& operator=(KeyUse&& other) noexcept {
    std::swap(account_, other.account_);
    return *this;
  }
  ~KeyUse() { release(); }

  void charge(int64_t tokens) {
    if (account_ != nullptr) account_->charge(tokens);
  }
  /// Null: empty.
  const KeyAccount* account() const { return account_; }
  void release() {
    if (KeyAccount* account = std::exchange(account_, nullptr)) account->leave();
  }

 private:
  KeyAccount* account_ = nullptr;
};

class KeyRing {
 public:
  explicit KeyRing(const std::vector<ApiKey>& keys);
  /// Whether requests need a key.
  bool required() const { return !accounts_.empty(); }
  /// The account of a presented key, or null. Takes the same time for every key of one length.
  KeyAccount* find(std::string_view presented) const;

 private:
  std::vector<std::unique_ptr<KeyAccount>> accounts_;
};

}  // namespace cedar::gateway
