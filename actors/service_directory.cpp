#include "actors/service_directory.h"

#include <algorithm>
#include <utility>

namespace cedar::actors {

void ServiceDirectory::update(const std::string& gateway, std::vector<DirectoryEntry> entries) {
  std::unique_lock lock(mutex_);
  lists_[gateway] = {true, std::move(entries)};
  merge(std::move(lock));
}

void ServiceDirectory::lose(const std::string& gateway) {
  std::unique_lock lock(mutex_);
  const auto list = lists_.find(gateway);
  if (list == lists_.end()) return;
  list->second.current = false;
  merge(std::move(lock));
}

void ServiceDirectory::merge(std::unique_lock<std::mutex> lock) {
  const bool any = std::any_of(lists_.begin(), lists_.end(),
                               [](const auto& list) { return list.second.current; });
  if (any) std::erase_if(lists_, [](const auto& list) { return !list.second.current; });
  std::map<std::string, DirectoryEntry> nodes;
  for (const auto& [gateway, list] : lists_) {
    for (const DirectoryEntry& entry : list.entries) {
      const auto [at, fresh] = nodes.try_emplace(entry.node, entry);
      if (!fresh && at->second.endpoint.generation < entry.endpoint.generation) at->second = entry;
    }
  }
  if (nodes == nodes_) return;
  nodes_ = std::move(nodes);
  ++version_;
  std::erase_if(callbacks_, [](const auto& callback) { return callback.expired(); });
  const auto callbacks = callbacks_;
  lock.unlock();
  for (const auto& weak : callbacks) {
    if (const auto callback = weak.lock()) (*callback)();
  }
}

std::vector<ServiceProvider> ServiceDirectory::services(ServiceRole role) const {
  std::lock_guard lock(mutex_);
  std::vector<ServiceProvider> providers;
  for (const auto& [name, entry] : nodes_) {
    for (const Service& service : entry.services) {
      if (service.role == role) providers.push_back({name, entry.endpoint, service});
    }
  }
  return providers;
}

uint64_t ServiceDirectory::version() const {
  std::lock_guard lock(mutex_);
  return version_;
}

std::shared_ptr<void> ServiceDirectory::on_change(Callback callback) const {
  auto handle = std::make_shared<Callback>(std::move(callback));
  std::lock_guard lock(mutex_);
  callbacks_.push_back(handle);
  return handle;
}

}  // namespace cedar::actors
