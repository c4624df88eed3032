#pragma once
// The services of the cluster as this process knows them: the union of what its gateways list. No CAF type appears here.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/services.h"
#include "transport/calls.h"

namespace cedar::actors {

/// A node that has a service.
struct ServiceProvider {
  std::string node;
  DataEndpoint endpoint;
  Service service;

  transport::CallTarget target() const {
    return {endpoint.host, endpoint.port, identity_of(endpoint)};
  }
  friend bool operator==(const ServiceProvider&, const ServiceProvider&) = default;
};

/// Threads: any. A mutex, because actors write and the threads of engines and of the data plane read; held for copies.
class ServiceDirectory {
 public:
  using Callback = std::function<void()>;

  /// What a gateway lists from now on.
  void update(const std::string& gateway, std::vector<DirectoryEntry> entries);
  /// A gateway is lost, and its list with it; but the last list of all stays, because services work without gateways.
  void lose(const std::string& gateway);

  /// Of the latest life of every node that a gateway lists; by name.
  std::vector<ServiceProvider> services(ServiceRole role) const;
  /// Rises whenever what services() says changes.
  uint64_t version() const;

  /// `callback` comes after every change, on the thread that made it, until the returned handle is destroyed; it must not
  /// block or call back into this object's update() and lose(). The handle may outlive the directory.
  [[nodiscard]] std::shared_ptr<void> on_change(Callback callback) const;

 private:
  struct List {
    bool current = false;  // false: of a gateway that is lost
    std::vector<DirectoryEntry> entries;
  };

  void merge(std::unique_lock<std::mutex> lock);

  mutable std::mutex mutex_;
  std::map<std::string, List> lists_;
  std::map<std::string, DirectoryEntry> nodes_;
  uint64_t version_ = 0;
  mutable std::vector<std::weak_ptr<Callback>> callbacks_;
};

}  // namespace cedar::actors
