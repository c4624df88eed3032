#pragma once
// The server's certificate and what TLS may be spoken: 1.2 and newer, HTTP/1.1.

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/result.h"

struct ssl_ctx_st;

namespace cedar::gateway {

class TlsContext {
 public:
  /// PEM files. Errors: invalid_config naming the setting, the file and what is wrong with it.
  static Result<std::shared_ptr<const TlsContext>> load(const std::string& certificate_file,
                                                        const std::string& key_file);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  ssl_ctx_st* native() const { return context_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

/// The one that new connections get. Thread-safe.
class CurrentTls {
 public:
  /// Null: connections are not encrypted.
  std::shared_ptr<const TlsContext> get() const {
    std::lock_guard lock(mutex_);
    return context_;
  }
  void set(std::shared_ptr<const TlsContext> context) {
    std::lock_guard lock(mutex_);
    context_.swap(context);
  }

 private:
  mutable std::mutex mutex_;  // reloading and accepting are on different threads
  std::shared_ptr<const TlsContext> context_;
};

}  // namespace cedar::gateway
