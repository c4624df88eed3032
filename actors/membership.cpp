#include "actors/membership.h"

#include <caf/event_based_actor.hpp>
#include <caf/io/middleman_actor.hpp>
#include <caf/send.hpp>

#include <set>
#include <utility>

#include "actors/errors.h"
#include "actors/local_stages.h"
#include "actors/network.h"
#include "actors/secret_proof.h"
#include "core/log.h"

namespace cedar::actors {
namespace {

/// Trying again at once cannot help.
bool is_refusal(Errc code) {
  return code == Errc::unsupported || code == Errc::invalid_argument ||
         code == Errc::stale_generation;
}

/// Looks for a gateway on a thread of its own, because that blocks; says what it found, and ends.
class Prober final : public caf::event_based_actor {
 public:
  Prober(caf::actor_config& config, const MembershipOptions& options, uint64_t epoch,
         caf::actor_addr asker)
      : event_based_actor(config),
        host_(options.host),
        port_(options.port),
        limit_(options.handshake_timeout),
        epoch_(epoch),
        asker_(std::move(asker)) {}
  caf::behavior make_behavior() override {
    const Status there = probe(host_, port_, limit_);
    if (const auto asker = caf::actor_cast<caf::actor>(asker_)) {
      caf::anon_send(asker, ProbedAtom::value, epoch_,
                     there ? std::string() : there.error().context);
    }
    return {};
  }
  const char* name() const override { return "cedar.prober"; }

 private:
  std::string host_;
  uint16_t port_;
  std::chrono::milliseconds limit_;
  uint64_t epoch_;
  caf::actor_addr asker_;
};

}  // namespace

Membership::Membership(caf::actor_config& config, MembershipOptions options)
    : typed_event_based_actor(config), options_(std::move(options)) {}

Membership::behavior_type Membership::make_behavior() {
  set_down_handler([this](caf::down_msg& down) {
    if (registry_ && down.source == registry_.address()) {
      on_error(make_error(Errc::unavailable, "the connection ended"));
    }
  });
  delayed_send(this, options_.heartbeat_interval, TickAtom::value);
  return {
      [this](NodeJoined& message) { offer(std::move(message.node)); },
      [this](const NodeLeft&) { goodbye(); },
      [](const NodeReport&) {},
      [this](TickAtom) { tick(); },
      [this](ProbedAtom, uint64_t epoch, const std::string& reason) {
        if (epoch != epoch_) return;
        reason.empty() ? connect() : on_error(make_error(Errc::unavailable, reason));
      },
      [this](DrainAtom) {
        draining_ = true;
        if (phase_ == Phase::registered) heartbeat();
      },
      [this](GoodbyeAtom) { goodbye(); },
  };
}

void Membership::on_exit() {
  destroy(registry_);
  destroy(node_.encoder);
  destroy(node_.decoder);
}

void Membership::offer(NodeDescription node) {
  node_ = std::move(node);
  if (phase_ == Phase::registered) {
    ++epoch_;
    phase_ = Phase::dialing;
    knock();
  } else if (phase_ == Phase::idle) {
    next_dial_ = {};
    dial();
  }
}

void Membership::tick() {
  delayed_send(this, options_.heartbeat_interval, TickAtom::value);
  const auto now = Clock::now();
  switch (phase_) {
    case Phase::idle:
      if (now >= next_dial_) dial();
      return;
    case Phase::dialing: return;  // every step has its own limit
    case Phase::registered:
      if (last_reply_ + options_.lost_after < now) {
        return on_error(make_error(Errc::unavailable, "it was silent for too long"));
      }
      return heartbeat();
  }
}

void Membership::dial() {
  if (node_.name.empty()) return;
  ++epoch_;
  phase_ = Phase::dialing;
  spawn<Prober, caf::detached>(options_, epoch_, address());
}

void Membership::connect() {
  request(connector(system()), options_.handshake_timeout, caf::connect_atom::value, options_.host,
          options_.port)
      .then(now_only<caf::node_id, caf::strong_actor_ptr, std::set<std::string>>(
                [this](const caf::node_id&, const caf::strong_actor_ptr& door,
                       const std::set<std::string>&) {
                  if (!door) return on_error(make_error(Errc::unavailable, "no gateway is there"));
                  registry_ = caf::actor_cast<RegistryActor>(door);
                  monitor(registry_);
                  knock();
                }),
            now_only<caf::error>([this](const caf::error& error) { on_error(from_caf(error)); }));
}

void Membership::knock() {
  const std::string nonce = random_nonce();
  request(registry_, options_.handshake_timeout,
          Knock{kControlProtocol, options_.cluster, node_.name, nonce})
      .then(now_only<Challenge>(
                [this, nonce](const Challenge& challenge) { hello(challenge, nonce); }),
            now_only<caf::error>([this](const caf::error& error) { on_error(from_caf(error)); }));
}

void Membership::hello(const Challenge& challenge, const std::string& nonce) {
  if (!equal_proofs(challenge.proof, gateway_proof(options_.secret, nonce, options_.gateway))) {
    return on_error(make_error(Errc::invalid_argument,
                               "whoever answers there is not gateway \"" + options_.gateway +
                                   "\" with the secret of cluster \"" + options_.cluster + '"'));
  }
  Hello message;
  message.node = node_;
  message.model = options_.model;
  message.nonce = challenge.nonce;
  message.proof = node_proof(options_.secret, challenge.nonce, node_.name, node_.generation);
  message.member = caf::actor_cast<caf::strong_actor_ptr>(this);
  request(registry_, options_.handshake_timeout, std::move(message))
      .then(now_only<Welcome>([this](const Welcome& reply) { welcome(reply.directory); }),
            now_only<caf::error>([this](const caf::error& error) { on_error(from_caf(error)); }));
}

void Membership::welcome(const Directory& directory) {
  phase_ = Phase::registered;
  last_reply_ = Clock::now();
  announce(MembershipState::registered, {});
  read(directory);
  if (draining_) heartbeat();
}

void Membership::heartbeat() {
  request(registry_, options_.lost_after,
          Heartbeat{node_.name, node_.generation, draining_, load_of(*options_.board),
                    directory_version_})
      .then(now_only<HeartbeatReply>([this](const HeartbeatReply& reply) {
              last_reply_ = Clock::now();
              read(reply.directory);
              if (reply.known || phase_ != Phase::registered) return;
              log::info("membership", "the gateway asks to register again",
                        {{"gateway", options_.gateway}});
              ++epoch_;
              phase_ = Phase::dialing;
              knock();
            }),
            now_only<caf::error>([this](const caf::error& error) { on_error(from_caf(error)); }));
}

void Membership::goodbye() {
  if (phase_ == Phase::registered) send(registry_, Goodbye{node_.name, node_.generation});
  quit();
}

void Membership::on_error(const Error& error) {
  lose(error, is_refusal(error.code) ? options_.refused_interval : options_.dial_interval);
}

void Membership::lose(const Error& error, std::chrono::milliseconds pause) {
  ++epoch_;
  phase_ = Phase::idle;
  if (registry_) demonitor(registry_.address());
  destroy(registry_);
  directory_version_ = 0;
  next_dial_ = Clock::now() + pause;
  announce(is_refusal(error.code) ? MembershipState::refused : MembershipState::searching, error);
}

void Membership::read(const Directory& directory) {
  if (directory.version == 0 || directory.version == directory_version_) return;
  directory_version_ = directory.version;
  if (options_.on_directory) options_.on_directory(directory.entries);
}

void Membership::announce(MembershipState state, const Error& error) {
  // An attempt every half second is not news every half second.
  if (state == announced_ && error.context == announced_reason_) return;
  announced_ = state;
  announced_reason_ = error.context;
  if (options_.on_change) options_.on_change(state, error);
}

}  // namespace cedar::actors
