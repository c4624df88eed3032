#pragma once
// A gateway's list of nodes: who may join, who is alive. Tells the router. A node that falls silent, leaves or is
// replaced by a later life is forgotten with all its handles; if it lives, it registers again at its next heartbeat.

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "actors/membership_messages.h"
#include "core/result.h"
#include "monitoring/metrics.h"

namespace cedar::actors {

struct RegistryOptions {
  std::string gateway;  // this node's name
  std::string cluster;
  std::string secret;
  ModelIdentity model;
  std::chrono::milliseconds lost_after{2000};
  /// What this node itself offers; no services: nothing is listed.
  DirectoryEntry self;
  /// Called on the actor's thread with what is listed, whenever that is new, and at the start.
  std::function<void(std::vector<DirectoryEntry>)> on_directory;
  std::shared_ptr<monitoring::Metrics> metrics = monitoring::no_metrics();
};

class Registry final : public RegistryActor::base {
 public:
  Registry(caf::actor_config& config, RegistryOptions options, NodeListener router);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.registry"; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Member {
    NodeDescription node;
    std::string weights;
    caf::actor_addr actor;
    Clock::time_point last_seen;
    bool draining = false;
  };
  /// The latest life of a node, remembered for a while after its end.
  struct Life {
    uint64_t generation = 0;
    Clock::time_point last_seen;
  };

  Result<Challenge> knock(const Knock& message);
  Result<Welcome> hello(Hello message);
  Status check_proof(const Hello& message);
  Status check_model(const Hello& message) const;
  Status check_life(const NodeDescription& node) const;
  Result<HeartbeatReply> heartbeat(const Heartbeat& message);
  void goodbye(const Goodbye& message);
  void tick();
  void on_down(const caf::actor_addr& actor);
  void forget(std::map<std::string, Member>::iterator member, const char* why);
  void list_services();

  RegistryOptions options_;
  NodeListener router_;
  std::map<std::string, Member> members_;
  std::map<std::string, Life> lives_;
  std::map<std::string, Clock::time_point> nonces_;  // given out, not yet used
  Clock::time_point last_tick_;
  Directory directory_;
};

}  // namespace cedar::actors
