#pragma once
// A node's side of its membership at one gateway: dials, registers, says that it lives, registers again whenever the
// gateway has forgotten it.

#include <caf/typed_event_based_actor.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "actors/load_board.h"
#include "actors/membership_messages.h"
#include "core/result.h"

namespace cedar::actors {

enum class MembershipState : uint8_t {
  searching,   // no connection; tries again
  registered,  // work may come
  refused,     // the gateway does not want this node; asks again, but seldom
};

struct MembershipOptions {
  std::string cluster;
  std::string secret;
  std::string gateway;  // its name
  std::string host;     // where it waits
  uint16_t port = 0;
  ModelIdentity model;
  std::chrono::milliseconds heartbeat_interval{500};
  std::chrono::milliseconds lost_after{2000};
  std::chrono::milliseconds dial_interval{500};
  std::chrono::milliseconds refused_interval{5000};
  std::chrono::milliseconds handshake_timeout{3000};
  std::shared_ptr<const LoadBoard> board;
  /// Called on the actor's thread at every change; the error says why it is not registered. Must not block.
  std::function<void(MembershipState, const Error&)> on_change;
  /// The same: what the gateway lists, whenever that is new.
  std::function<void(std::vector<DirectoryEntry>)> on_directory;
};

using GoodbyeAtom = caf::atom_constant<caf::atom("goodbye")>;
using ProbedAtom = caf::atom_constant<caf::atom("probed")>;

/// NodeJoined: what this node offers from now on. It registers with that, again if need be.
using MembershipActor = NodeListener::extend<
    caf::reacts_to<TickAtom>,
    caf::reacts_to<ProbedAtom, uint64_t, std::string>,  // epoch, and why nobody is there
    caf::reacts_to<DrainAtom>,                          // no new work, please
    caf::reacts_to<GoodbyeAtom>>;                       // leaves and ends

class Membership final : public MembershipActor::base {
 public:
  Membership(caf::actor_config& config, MembershipOptions options);

  behavior_type make_behavior() override;
  void on_exit() override;
  const char* name() const override { return "cedar.membership"; }

 private:
  using Clock = std::chrono::steady_clock;
  /// idle: nothing to offer, or waits for the time to dial.  dialing: on its way to a connection and through it.
  enum class Phase : uint8_t { idle, dialing, registered };

  void offer(NodeDescription node);
  void tick();
  void dial();
  void connect();
  void knock();
  void hello(const Challenge& challenge, const std::string& nonce);
  void welcome(const Directory& directory);
  void heartbeat();
  void goodbye();
  void on_error(const Error& error);
  void lose(const Error& error, std::chrono::milliseconds pause);
  void read(const Directory& directory);
  void announce(MembershipState state, const Error& error);
  /// A callback for the current attempt; what answers an earlier one is dropped.
  template <class... Values, class F>
  auto now_only(F f) {
    return [this, epoch = epoch_, f](const Values&... values) {
      if (epoch == epoch_) f(values...);
    };
  }

  MembershipOptions options_;
  NodeDescription node_;  // no name: nothing to offer yet
  Phase phase_ = Phase::idle;
  RegistryActor registry_;
  Clock::time_point next_dial_;
  Clock::time_point last_reply_;
  uint64_t epoch_ = 0;
  bool draining_ = false;
  uint64_t directory_version_ = 0;
  MembershipState announced_ = MembershipState::searching;
  std::string announced_reason_;
};

}  // namespace cedar::actors
