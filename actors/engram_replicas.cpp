#include "actors/engram_replicas.h"

#include <algorithm>

namespace cedar::actors {

void EngramReplicas::update(const std::vector<ServiceProvider>& providers) {
  std::map<int32_t, std::vector<std::vector<ServiceProvider>>> by_count;
  for (const ServiceProvider& provider : providers) {
    const Service& service = provider.service;
    if (service.shards < 1 || service.shards > kMaxShards || service.shard < 0 ||
        service.shard >= service.shards)
      continue;
    auto& shards = by_count[service.shards];
    shards.resize(static_cast<size_t>(service.shards));
    shards[static_cast<size_t>(service.shard)].push_back(provider);
  }
  replicas_.clear();
  std::pair<size_t, size_t> best{};  // shards that are missing, nodes
  for (auto& [count, shards] : by_count) {
    size_t missing = 0, nodes = 0;
    for (const auto& replicas : shards) {
      missing += replicas.empty() ? 1 : 0;
      nodes += replicas.size();
    }
    const bool better =
        replicas_.empty() || missing < best.first || (missing == best.first && nodes > best.second);
    if (!better) continue;
    best = {missing, nodes};
    replicas_ = std::move(shards);
  }
  turn_.resize(replicas_.size());
  // What is known of nodes that are gone is of no use.
  std::erase_if(passed_over_until_, [&](const auto& entry) {
    return std::none_of(providers.begin(), providers.end(), [&](const ServiceProvider& provider) {
      return key_of(identity_of(provider.endpoint)) == entry.first;
    });
  });
}

std::optional<ServiceProvider> EngramReplicas::next(
    int32_t shard, const std::vector<transport::NodeIdentity>& asked, transport::TimePoint now) {
  const auto& replicas = replicas_[static_cast<size_t>(shard)];
  size_t& turn = turn_[static_cast<size_t>(shard)];
  const ServiceProvider* last_resort = nullptr;
  for (size_t i = 0; i < replicas.size(); ++i) {
    const size_t at = (turn + i) % replicas.size();
    const ServiceProvider& provider = replicas[at];
    const transport::NodeIdentity identity = identity_of(provider.endpoint);
    if (std::find(asked.begin(), asked.end(), identity) != asked.end()) continue;
    const auto bad = passed_over_until_.find(key_of(identity));
    if (bad == passed_over_until_.end() || bad->second <= now) {
      turn = at + 1;
      return provider;
    }
    if (last_resort == nullptr) last_resort = &provider;
  }
  if (last_resort == nullptr) return std::nullopt;
  return *last_resort;
}

void EngramReplicas::failed(const transport::NodeIdentity& node, transport::TimePoint now) {
  passed_over_until_[key_of(node)] = now + kPassedOver;
}

void EngramReplicas::succeeded(const transport::NodeIdentity& node) {
  passed_over_until_.erase(key_of(node));
}

}  // namespace cedar::actors
