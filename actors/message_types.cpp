#include "actors/message_types.h"

#include "actors/messages.h"

namespace cedar::actors {

// A message that has inspect() and is missing here fails in tests/actors/messages_test.cpp.
void add_message_types(caf::actor_system_config& config) {
  config.add_message_type<PrefillProgress>("cedar.PrefillProgress")
      .add_message_type<ReplayBegun>("cedar.ReplayBegun")
      .add_message_type<TokenBatch>("cedar.TokenBatch")
      .add_message_type<BlockWritten>("cedar.BlockWritten")
      .add_message_type<PullFailed>("cedar.PullFailed")
      .add_message_type<StageFailed>("cedar.StageFailed")
      .add_message_type<ReserveRoom>("cedar.ReserveRoom")
      .add_message_type<RoomReserved>("cedar.RoomReserved")
      .add_message_type<ImportBlocks>("cedar.ImportBlocks")
      .add_message_type<TakeOver>("cedar.TakeOver")
      .add_message_type<CancelWork>("cedar.CancelWork")
      .add_message_type<BeginPrefill>("cedar.BeginPrefill")
      .add_message_type<LookupPrefix>("cedar.LookupPrefix")
      .add_message_type<PrefixLease>("cedar.PrefixLease")
      .add_message_type<StoreBlocks>("cedar.StoreBlocks")
      .add_message_type<StoreWindows>("cedar.StoreWindows")
      .add_message_type<ReleaseLease>("cedar.ReleaseLease")
      .add_message_type<CacheUsage>("cedar.CacheUsage");
}

}  // namespace cedar::actors
