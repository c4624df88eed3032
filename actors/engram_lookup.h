#pragma once
// Serves rows of the n-gram tables by layer and row id. Detached: rows of a mapped file may have to come
// from disk.

#include <caf/typed_event_based_actor.hpp>

#include <chrono>
#include <memory>

#include "actors/messages.h"
#include "engine/engram_source.h"

namespace cedar::actors {

class EngramLookup final : public EngramActor::base {
 public:
  /// `row_bytes`: codes and scales of one row.
  EngramLookup(caf::actor_config& config, std::shared_ptr<engine::EngramSource> source,
               int64_t row_bytes);

  behavior_type make_behavior() override;
  void on_exit() override { source_.reset(); }
  const char* name() const override { return "cedar.engram_lookup"; }

 private:
  std::shared_ptr<engine::EngramSource> source_;
  int64_t row_bytes_;
};

/// An EngramSource that asks `actor` and waits for the reply, at most `timeout` per fetch. For engines on
/// threads of their own (detached stages); a scheduled actor must not wait.
std::shared_ptr<engine::EngramSource> engram_source_of(caf::actor_system& system, EngramActor actor,
                                                       int64_t row_bytes,
                                                       std::chrono::milliseconds timeout);

}  // namespace cedar::actors
