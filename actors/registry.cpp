#include "actors/registry.h"

#include <algorithm>
#include <random>
#include <utility>

#include "actors/errors.h"
#include "actors/secret_proof.h"
#include "core/log.h"

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMaxNonces = 1024;
constexpr auto kNonceLife = 10s;
/// How long a generation is remembered after the node's last sign of life: a former self that was stopped for
/// longer than this may come back as if it were new.
constexpr auto kLifeMemory = 24h;

template <class T>
caf::result<T> reply(Result<T> result) {
  if (result) return std::move(*result);
  return to_caf(result.error());
}

/// A node that has the list of an earlier life of this gateway must not take this one's for the same.
uint64_t first_version() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

std::string quoted(const std::string& text) { return '"' + text + '"'; }

}  // namespace

Registry::Registry(caf::actor_config& config, RegistryOptions options, NodeListener router)
    : typed_event_based_actor(config),
      options_(std::move(options)),
      router_(std::move(router)),
      last_tick_(Clock::now()) {}

Registry::behavior_type Registry::make_behavior() {
  set_down_handler([this](caf::down_msg& down) { on_down(down.source); });
  delayed_send(this, options_.lost_after / 4, TickAtom::value);
  directory_.version = first_version();
  list_services();
  return {
      [this](const Knock& message) {
        auto answer = knock(message);
        if (!answer)
          options_.metrics->add(monitoring::MetricId::cluster_refused, answer.error().code);
        return reply(std::move(answer));
      },
      [this](Hello& message) { return reply(hello(std::move(message))); },
      [this](const Heartbeat& message) { return reply(heartbeat(message)); },
      [this](const Goodbye& message) { goodbye(message); },
      [this](TickAtom) { tick(); },
  };
}

void Registry::on_exit() {
  members_.clear();
  destroy(router_);
}

Result<Challenge> Registry::knock(const Knock& message) {
  if (message.protocol != kControlProtocol) {
    return make_error(Errc::unsupported,
                      "node " + quoted(message.node) + " speaks control protocol " +
                          std::to_string(message.protocol) + ", gateway " +
                          quoted(options_.gateway) + " speaks " + std::to_string(kControlProtocol));
  }
  if (message.cluster != options_.cluster) {
    return make_error(Errc::invalid_argument, "node " + quoted(message.node) +
                                                  " belongs to cluster " + quoted(message.cluster) +
                                                  ", gateway " + quoted(options_.gateway) +
                                                  " to cluster " + quoted(options_.cluster));
  }
  if (nonces_.size() >= kMaxNonces) {
    return make_error(Errc::overloaded, "too many nodes register at once");
  }
  Challenge challenge;
  challenge.nonce = random_nonce();
  challenge.proof = gateway_proof(options_.secret, message.nonce, options_.gateway);
  nonces_.emplace(challenge.nonce, Clock::now());
  return challenge;
}

Status Registry::check_proof(const Hello& message) {
  const bool ours = nonces_.erase(message.nonce) == 1;
  const std::string expected =
      node_proof(options_.secret, message.nonce, message.node.name, message.node.generation);
  if (!ours || !equal_proofs(message.proof, expected)) {
    return make_error(Errc::invalid_argument, "node " + quoted(message.node.name) +
                                                  " does not know the secret of cluster " +
                                                  quoted(options_.cluster));
  }
  return {};
}

Status Registry::check_model(const Hello& message) const {
  const auto differs = [&](const char* what, const std::string& theirs, const std::string& owner,
                           const std::string& ours) {
    return make_error(Errc::unsupported, "node " + quoted(message.node.name) + " has " + what +
                                             ' ' + theirs + ", " + owner + " has " + ours);
  };
  const std::string gateway = "gateway " + quoted(options_.gateway);
  if (message.model.layout != options_.model.layout) {
    return differs("KV layout", message.model.layout, gateway, options_.model.layout);
  }
  if (message.model.config != options_.model.config) {
    return differs("model", message.model.config, gateway, options_.model.config);
  }
  for (const auto& [name, member] : members_) {
    // Some roles hold no weights.
    if (member.weights.empty() || message.model.weights.empty()) continue;
    if (name != message.node.name && member.weights != message.model.weights) {
      return differs("weights", message.model.weights, "node " + quoted(name), member.weights);
    }
  }
  return {};
}

Status Registry::check_life(const NodeDescription& node) const {
  const auto life = lives_.find(node.name);
  if (life != lives_.end() && node.generation < life->second.generation) {
    return make_error(
        Errc::stale_generation,
        "node " + quoted(node.name) + " has generation " + std::to_string(node.generation) +
            ", a later one has registered: " + std::to_string(life->second.generation));
  }
  for (const auto& [name, member] : members_) {
    if (name != node.name && member.node.id == node.id) {
      return make_error(Errc::invalid_argument, "node " + quoted(node.name) +
                                                    " has the same id as node " + quoted(name) +
                                                    ": " + std::to_string(node.id.value));
    }
  }
  return {};
}

Result<Welcome> Registry::hello(Hello message) {
  const auto refuse = [&](const Error& error) {
    options_.metrics->add(monitoring::MetricId::cluster_refused, error.code);
    log::warn("registry", "node refused",
              {{"node", message.node.name}, {"reason", error.message()}});
    return error;
  };
  if (const Status ok = check_proof(message); !ok) return refuse(ok.error());
  if (const Status ok = check_life(message.node); !ok) return refuse(ok.error());
  if (const Status ok = check_model(message); !ok) return refuse(ok.error());
  const std::string name = message.node.name;
  const auto known = members_.find(name);
  bool draining = false;
  if (known != members_.end()) {
    if (known->second.actor) demonitor(known->second.actor);
    if (known->second.node.generation != message.node.generation) {
      forget(known, "a later life of it registers");
    } else {
      draining = known->second.draining;
      members_.erase(known);
    }
  }
  const auto now = Clock::now();
  Member& member = members_[name];
  member.node = std::move(message.node);
  member.weights = std::move(message.model.weights);
  member.last_seen = now;
  member.draining = draining;
  if (message.member) {
    member.actor = caf::actor_cast<caf::actor_addr>(message.member);
    monitor(member.actor);
  }
  lives_[name] = {member.node.generation, now};
  log::info("registry", "node joined",
            {{"node", name},
             {"generation", member.node.generation},
             {"encoder", static_cast<bool>(member.node.encoder)},
             {"decoder", static_cast<bool>(member.node.decoder)},
             {"services", int64_t(member.node.services.size())}});
  send(router_, NodeJoined{member.node});
  list_services();
  return Welcome{options_.gateway, directory_};
}

Result<HeartbeatReply> Registry::heartbeat(const Heartbeat& message) {
  const auto life = lives_.find(message.node);
  if (life != lives_.end() && message.generation < life->second.generation) {
    options_.metrics->add(monitoring::MetricId::cluster_refused, Errc::stale_generation);
    return make_error(
        Errc::stale_generation,
        "node " + quoted(message.node) + " has generation " + std::to_string(message.generation) +
            ", a later one has registered: " + std::to_string(life->second.generation));
  }
  const auto member = members_.find(message.node);
  if (member == members_.end() || member->second.node.generation != message.generation) {
    return HeartbeatReply{false, {}};
  }
  member->second.last_seen = Clock::now();
  life->second.last_seen = member->second.last_seen;
  send(router_, NodeReport{message.node, message.generation, message.draining, message.load});
  if (std::exchange(member->second.draining, message.draining) != message.draining) list_services();
  if (message.directory == directory_.version) return HeartbeatReply{true, {}};
  return HeartbeatReply{true, directory_};
}

void Registry::goodbye(const Goodbye& message) {
  const auto member = members_.find(message.node);
  if (member == members_.end() || member->second.node.generation != message.generation) return;
  if (member->second.actor) demonitor(member->second.actor);
  forget(member, "it said goodbye");
}

void Registry::tick() {
  delayed_send(this, options_.lost_after / 4, TickAtom::value);
  const auto now = Clock::now();
  // A process that did not run for a while does not hold that against the others.
  const auto pause = now - std::exchange(last_tick_, now);
  if (pause > options_.lost_after / 2) {
    for (auto& [name, member] : members_) member.last_seen += pause;
  }
  for (auto it = members_.begin(); it != members_.end();) {
    const auto member = it++;
    if (member->second.last_seen + options_.lost_after >= now) continue;
    if (member->second.actor) demonitor(member->second.actor);
    forget(member, "it was silent for too long");
  }
  for (auto it = nonces_.begin(); it != nonces_.end();) {
    it = it->second + kNonceLife < now ? nonces_.erase(it) : std::next(it);
  }
  for (auto it = lives_.begin(); it != lives_.end();) {
    const bool old = it->second.last_seen + kLifeMemory < now && members_.count(it->first) == 0;
    it = old ? lives_.erase(it) : std::next(it);
  }
}

void Registry::on_down(const caf::actor_addr& actor) {
  const auto member = std::find_if(members_.begin(), members_.end(),
                                   [&](const auto& entry) { return entry.second.actor == actor; });
  if (member != members_.end()) forget(member, "its connection ended");
}

void Registry::forget(std::map<std::string, Member>::iterator member, const char* why) {
  const NodeDescription& node = member->second.node;
  log::warn("registry", "node left",
            {{"node", node.name}, {"generation", node.generation}, {"reason", why}});
  send(router_, NodeLeft{node.name, node.generation, false});
  members_.erase(member);
  list_services();
}

/// What drains is not listed any more: nobody should begin to use it.
void Registry::list_services() {
  std::vector<DirectoryEntry> entries;
  if (!options_.self.services.empty()) entries.push_back(options_.self);
  for (const auto& [name, member] : members_) {
    const NodeDescription& node = member.node;
    if (node.services.empty() || member.draining) continue;
    entries.push_back(
        {name, {node.data_host, node.data_port, node.id.value, node.generation}, node.services});
  }
  if (entries == directory_.entries) return;
  directory_.entries = std::move(entries);
  ++directory_.version;
  if (options_.on_directory) options_.on_directory(directory_.entries);
}

}  // namespace cedar::actors
