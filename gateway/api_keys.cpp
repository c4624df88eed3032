#include "gateway/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cmath>

namespace cedar::gateway {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

ApiError too_much(const std::string& message, double wait_s) {
  ApiError error = http_error(429, message);
  error.retry_after_s = std::max(1, static_cast<int>(std::ceil(wait_s - 1e-6)));
  return error;
}

std::string a_minute(int64_t count, const char* what) {
  return "at most " + std::to_string(count) + ' ' + what + " a minute with this API key";
}

}  // namespace

KeyDigest digest_of(std::string_view key) {
  KeyDigest digest{};
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

Result<KeyDigest> parse_digest(std::string_view hex) {
  KeyDigest digest{};
  bool valid = hex.size() == 2 * digest.size();
  for (size_t i = 0; valid && i < digest.size(); ++i) {
    const int high = hex_value(hex[2 * i]);
    const int low = hex_value(hex[2 * i + 1]);
    valid = high >= 0 && low >= 0;
    digest[i] = static_cast<uint8_t>(high * 16 + low);
  }
  if (!valid) return make_error(Errc::invalid_argument, "must be 64 hexadecimal digits");
  return digest;
}

double MinuteBucket::wait_s(double amount, Clock::time_point now) {
  if (capacity_ <= 0) return 0;
  const double per_s = capacity_ / 60;
  const double passed_s = std::chrono::duration<double>(now - filled_).count();
  if (passed_s > 0) {
    level_ = std::min(capacity_, level_ + passed_s * per_s);
    filled_ = now;
  }
  return level_ >= amount ? 0 : (amount - level_) / per_s;
}

KeyAccount::KeyAccount(ApiKey key, Clock::time_point now)
    : key_(std::move(key)),
      requests_(key_.requests_per_minute, now),
      tokens_(key_.tokens_per_minute, now) {}

std::optional<ApiError> KeyAccount::enter(Clock::time_point now) {
  std::lock_guard lock(mutex_);
  if (key_.max_concurrent > 0 && running_ >= key_.max_concurrent) {
    return too_much(
        "at most " + std::to_string(key_.max_concurrent) + " requests at once with this API key",
        1);
  }
  if (const double wait = requests_.wait_s(1, now); wait > 0) {
    return too_much(a_minute(key_.requests_per_minute, "requests"), wait);
  }
  if (const double wait = tokens_.wait_s(1, now); wait > 0) {
    return too_much(a_minute(key_.tokens_per_minute, "tokens"), wait);
  }
  requests_.take(1);
  ++running_;
  return std::nullopt;
}

void KeyAccount::charge(int64_t tokens) {
  std::lock_guard lock(mutex_);
  tokens_.take(static_cast<double>(tokens));
}

void KeyAccount::leave() {
  std::lock_guard lock(mutex_);
  --running_;
}

KeyRing::KeyRing(const std::vector<ApiKey>& keys) {
  for (const ApiKey& key : keys) accounts_.push_back(std::make_unique<KeyAccount>(key));
}

KeyAccount* KeyRing::find(std::string_view presented) const {
  const KeyDigest digest = digest_of(presented);
  KeyAccount* found = nullptr;
  for (const auto& account : accounts_) {  // all of them, whichever it is
    const bool same = CRYPTO_memcmp(account->digest().data(), digest.data(), digest.size()) == 0;
    if (same) found = account.get();
  }
  return found;
}

}  // namespace cedar::gateway
