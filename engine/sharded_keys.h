#pragma once
// The owner's side of engine/index_service.h: which of an engine's sequences have keys elsewhere, and the handing over of
// blocks as they are finished.

#include <cstdint>
#include <map>
#include <memory>

#include "core/ids.h"
#include "engine/index_service.h"
#include "engine/loaded_model.h"
#include "engine/options.h"
#include "engine/sequence_store.h"

namespace cedar::engine {

/// One thread. Closes what is open when it goes. Borrows the store.
class ShardedKeys {
 public:
  /// Keys of the KV sources below layer `last`. Without a service in the options nothing is ever spread.
  /// Errors: unsupported (a device other than the CPU, candidate blocks that straddle KV blocks).
  static Result<ShardedKeys> create(const LoadedModel& model, SequenceStore& store, LayerId last,
                                    const EngineOptions& options);
  ShardedKeys(ShardedKeys&&) = default;
  ShardedKeys& operator=(ShardedKeys&&) = delete;
  ~ShardedKeys();

  /// `blocks` leading blocks of the sequence in `slot`, of `tokens` tokens, have all their rows: what the service wants of them
  /// goes to it. Once a step.
  void finished(SequenceSlot slot, int64_t tokens, int64_t blocks);
  /// With the slot. Slots without a sequence are ignored.
  void close(SequenceSlot slot);

  /// Null: all keys of this sequence are here alone.
  const IndexSequence* find(SequenceSlot slot) const;
  IndexService& service() const { return *service_; }

 private:
  ShardedKeys(SequenceStore& store, std::shared_ptr<IndexService> service, int64_t min_tokens,
              IndexBlockLayout layout)
      : store_(&store),
        service_(std::move(service)),
        min_tokens_(min_tokens),
        layout_(std::move(layout)) {}

  SequenceStore* store_;
  std::shared_ptr<IndexService> service_;
  int64_t min_tokens_;
  IndexBlockLayout layout_;
  std::map<SequenceSlot, IndexSequence> sequences_;
};

}  // namespace cedar::engine
