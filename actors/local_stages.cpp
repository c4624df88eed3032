#include "actors/local_stages.h"

#include <caf/send.hpp>

#include <algorithm>
#include <utility>

#include "actors/errors.h"
#include "core/log.h"

namespace cedar::actors {
namespace {

/// With high priority: an ordinary exit message waits behind the stage's backlog.
template <class Handle>
void end_stage(Handle& stage) {
  if (!stage) return;
  caf::anon_send<caf::message_priority::high>(
      caf::actor_cast<caf::actor>(stage),
      caf::exit_msg{caf::actor_addr{}, caf::exit_reason::user_shutdown});
  destroy(stage);
}

}  // namespace

NodeLoad load_of(const LoadBoard& board) {
  return {board.encoder_requests,  board.encoder_queued_tokens, board.encoder_free_blocks,
          board.decoder_sequences, board.decoder_free_blocks,   board.decoder_total_blocks,
          board.engram()};
}

LocalStages::LocalStages(caf::actor_config& config, LocalStagesOptions options,
                         StageSpawners spawners, std::vector<NodeListener> listeners)
    : typed_event_based_actor(config),
      options_(std::move(options)),
      spawners_(std::move(spawners)),
      listeners_(std::move(listeners)) {}

LocalStages::behavior_type LocalStages::make_behavior() {
  set_down_handler([this](caf::down_msg& down) { on_down(down); });
  node_.name = options_.node;
  node_.id = NodeId(spawners_.endpoint.node);
  node_.generation = spawners_.endpoint.generation;
  node_.data_host = spawners_.endpoint.host;
  node_.data_port = spawners_.endpoint.port;
  node_.services = options_.services;
  if (spawners_.encoder) {
    node_.encoder_capacity = options_.encoder;
    node_.fingerprint = options_.fingerprint;
    node_.encoder = spawners_.encoder(system());
    monitor(node_.encoder);
  }
  if (spawners_.decoder) {
    node_.decoder_capacity = options_.decoder;
    node_.decoder = spawners_.decoder(system());
    monitor(node_.decoder);
  }
  if (spawners_.cache) {
    node_.cache = spawners_.cache(system());
    monitor(node_.cache);
  }
  announce();
  if (options_.board) delayed_send(this, options_.report_interval, TickAtom::value);
  return {[this](TickAtom) {
    delayed_send(this, options_.report_interval, TickAtom::value);
    if (look_for_ranks()) announce();
    tell(NodeReport{node_.name, node_.generation, false, load_of(*options_.board)});
  }};
}

bool LocalStages::look_for_ranks() {
  const bool encoder = !options_.encoder_complete || options_.encoder_complete();
  const bool decoder = !options_.decoder_complete || options_.decoder_complete();
  const bool encoder_news = std::exchange(encoder_complete_, encoder) != encoder;
  const bool decoder_news = std::exchange(decoder_complete_, decoder) != decoder;
  return encoder_news || decoder_news;
}

void LocalStages::announce() {
  look_for_ranks();
  NodeJoined joined{node_};
  if (!encoder_complete_) destroy(joined.node.encoder);
  if (!decoder_complete_) destroy(joined.node.decoder);
  tell(joined);
}

void LocalStages::on_exit() {
  end_stage(node_.encoder);
  end_stage(node_.decoder);
  end_stage(node_.cache);
  spawners_ = {};
  listeners_.clear();
}

void LocalStages::on_down(const caf::down_msg& down) {
  if (node_.encoder && down.source == node_.encoder.address()) {
    destroy(node_.encoder);
    if (!restart(encoder_restarts_, "encoder")) return;
    node_.encoder = spawners_.encoder(system());
    monitor(node_.encoder);
  } else if (node_.decoder && down.source == node_.decoder.address()) {
    destroy(node_.decoder);
    if (!restart(decoder_restarts_, "decoder")) return;
    node_.decoder = spawners_.decoder(system());
    monitor(node_.decoder);
  } else if (node_.cache && down.source == node_.cache.address()) {
    destroy(node_.cache);
    // Stages beside it compute what it had.
    const bool alone = !node_.encoder && !node_.decoder;
    if (restart(cache_restarts_, "cache", alone)) {
      node_.cache = spawners_.cache(system());
      monitor(node_.cache);
    } else if (alone) {
      return;
    }
  } else {
    return;
  }
  announce();
}

bool LocalStages::restart(std::vector<Clock::time_point>& restarts, const char* stage,
                          bool node_needs_it) {
  const auto now = Clock::now();
  restarts.erase(std::remove_if(restarts.begin(), restarts.end(),
                                [&](auto at) { return at + options_.restart_window < now; }),
                 restarts.end());
  if (static_cast<int64_t>(restarts.size()) < options_.max_restarts) {
    restarts.push_back(now);
    log::warn("stages", "stage went down, starting it again", {{"stage", stage}});
    return true;
  }
  log::error("stages", "stage went down and stays down", {{"stage", stage}});
  if (!node_needs_it) return false;
  tell(NodeLeft{node_.name, node_.generation, true});
  if (options_.on_given_up) options_.on_given_up(stage);
  return false;
}

}  // namespace cedar::actors
