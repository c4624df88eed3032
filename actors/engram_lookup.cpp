#include "actors/engram_lookup.h"

#include <caf/scoped_actor.hpp>

#include <algorithm>
#include <utility>

#include "actors/errors.h"

namespace cedar::actors {
namespace {

class ActorEngramSource final : public engine::EngramSource {
 public:
  ActorEngramSource(caf::actor_system& system, EngramActor actor, int64_t row_bytes,
                    std::chrono::milliseconds timeout)
      : system_(system), actor_(std::move(actor)), row_bytes_(row_bytes), timeout_(timeout) {}

  Status fetch(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) override {
    const size_t bytes = row_ids.size() * static_cast<size_t>(row_bytes_);
    Status status;
    caf::scoped_actor self(system_);
    self->request(actor_, timeout_, LookupRows{layer, {row_ids.begin(), row_ids.end()}})
        .receive(
            [&](const EngramRows& rows) {
              if (rows.packed.size() == bytes) {
                std::copy(rows.packed.begin(), rows.packed.end(), packed);
              } else {
                status = make_error(Errc::internal, "Engram reply of layer " +
                                                        std::to_string(layer) + ": expected " +
                                                        std::to_string(bytes) + " bytes, got " +
                                                        std::to_string(rows.packed.size()));
              }
            },
            [&](const caf::error& error) { status = from_caf(error); });
    return status;
  }

 private:
  caf::actor_system& system_;
  EngramActor actor_;
  int64_t row_bytes_;
  std::chrono::milliseconds timeout_;
};

}  // namespace

EngramLookup::EngramLookup(caf::actor_config& config, std::shared_ptr<engine::EngramSource> source,
                           int64_t row_bytes)
    : typed_event_based_actor(config), source_(std::move(source)), row_bytes_(row_bytes) {}

EngramLookup::behavior_type EngramLookup::make_behavior() {
  return {[this](const LookupRows& message) -> caf::result<EngramRows> {
    EngramRows reply;
    reply.packed.resize(message.rows.size() * static_cast<size_t>(row_bytes_));
    const Status status = source_->fetch(message.layer, message.rows, reply.packed.data());
    if (!status) return to_caf(status.error());
    return reply;
  }};
}

std::shared_ptr<engine::EngramSource> engram_source_of(caf::actor_system& system, EngramActor actor,
                                                       int64_t row_bytes,
                                                       std::chrono::milliseconds timeout) {
  return std::make_shared<ActorEngramSource>(system, std::move(actor), row_bytes, timeout);
}

}  // namespace cedar::actors
