#pragma once
// The open connections of a gateway: how many there are, and a way to tell them all to end.

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace cedar::gateway {

/// Both calls may come from any thread and return at once.
class Connection {
 public:
  virtual ~Connection() = default;
  /// End as soon as nothing runs; start nothing new.
  virtual void stop_soon() = 0;
  /// Close now.
  virtual void stop_now() = 0;
};

class ConnectionSet {
 public:
  void add(const std::shared_ptr<Connection>& connection) {
    std::lock_guard lock(mutex_);
    connections_[connection.get()] = connection;
  }
  void remove(const Connection* connection) {
    std::lock_guard lock(mutex_);
    connections_.erase(connection);
  }
  int64_t size() const {
    std::lock_guard lock(mutex_);
    return static_cast<int64_t>(connections_.size());
  }
  std::vector<std::shared_ptr<Connection>> all() const {
    std::vector<std::shared_ptr<Connection>> result;
    std::lock_guard lock(mutex_);
    for (const auto& [key, weak] : connections_) {
      if (auto connection = weak.lock()) result.push_back(std::move(connection));
    }
    return result;
  }

 private:
  // Sessions of several io threads come and go here; nothing is called while it is held.
  mutable std::mutex mutex_;
  std::unordered_map<const Connection*, std::weak_ptr<Connection>> connections_;
};

}  // namespace cedar::gateway
