#pragma once
// Which node to ask for an Engram shard: replicas in turn, those that failed lately last. Single-threaded.

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/service_directory.h"
#include "transport/types.h"

namespace cedar::actors {

class EngramReplicas {
 public:
  /// What the cluster has now. Nodes may disagree on the number of shards, while a cluster is changed from one number to
  /// another: the number with the fewest shards missing counts, and of these the one with the most nodes.
  void update(const std::vector<ServiceProvider>& providers);

  /// 0: there is none.
  int32_t shards() const { return static_cast<int32_t>(replicas_.size()); }
  size_t replicas(int32_t shard) const { return replicas_[static_cast<size_t>(shard)].size(); }

  /// The next one to ask that is not among `asked`. Empty: all have been asked.
  std::optional<ServiceProvider> next(int32_t shard,
                                      const std::vector<transport::NodeIdentity>& asked,
                                      transport::TimePoint now);
  /// It comes last for a while.
  void failed(const transport::NodeIdentity& node, transport::TimePoint now);
  void succeeded(const transport::NodeIdentity& node);

  static constexpr std::chrono::milliseconds kPassedOver{1000};
  static constexpr int32_t kMaxShards = 4096;

 private:
  using Identity = std::pair<uint32_t, uint64_t>;
  static Identity key_of(const transport::NodeIdentity& node) {
    return {node.node.value, node.generation};
  }

  std::vector<std::vector<ServiceProvider>> replicas_;  // of each shard
  std::vector<size_t> turn_;
  std::map<Identity, transport::TimePoint> passed_over_until_;
};

}  // namespace cedar::actors
