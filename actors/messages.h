#pragma once
// The messages between actors and the typed handles that take them. Of a request's messages only the
// reservation has a reply; all others are one-way, and the end of the session releases everything.
//
// Messages marked at the end of this file stay in one process, most of them because they hold bytes, sinks or
// requests by pointer; the others have inspect() and may cross processes.

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/atom.hpp>
#include <caf/meta/type_name.hpp>
#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/client.h"
#include "actors/once_sink.h"
#include "core/ids.h"
#include "model/block_key.h"

namespace cedar::actors {

using StepAtom = caf::atom_constant<caf::atom("step")>;
using TickAtom = caf::atom_constant<caf::atom("tick")>;
using DrainAtom = caf::atom_constant<caf::atom("drain")>;

// --- to a session ----------------------------------------------------------------------------------------

/// The encoder computed rows of this prompt.
struct PrefillProgress {
  int64_t computed = 0;   // prompt tokens read so far
  bool finished = false;  // the hand-off is on its way to the decoder
};
/// The decoder has taken over everything and begins its replay.
struct ReplayBegun {
  RequestId id;
};
/// What one decoder step produced for this request.
struct TokenBatch {
  std::vector<engine::TokenEvent> tokens;
};
/// A stage gave up on this request and has released it.
struct StageFailed {
  Error error;
};
/// Ends the session. `code` is cancelled (the client asked) or deadline_exceeded.
struct EndSession {
  Errc code = Errc::cancelled;
};

using SessionActor = caf::typed_actor<caf::reacts_to<PrefillProgress>, caf::reacts_to<ReplayBegun>,
                                      caf::reacts_to<TokenBatch>, caf::reacts_to<StageFailed>,
                                      caf::reacts_to<EndSession>>;

// --- to the decoder --------------------------------------------------------------------------------------

/// Takes a sequence slot and worst-case pages. The stage watches the session and frees everything when it
/// goes down. Errors: context_too_long, invalid_argument, overloaded (no room, and nothing will free any).
/// While other sequences hold the room, the reply waits.
struct ReserveRoom {
  std::shared_ptr<const GenerateRequest> request;
  SessionActor session;
};
struct RoomReserved {
  RequestId id;
};
/// KV blocks [first, first + blocks.size()) are written. The bytes stay valid while `lease` lives; the last
/// copy of the lease to go lets the encoder reuse them.
struct BlocksReady {
  RequestId id;
  int64_t first = 0;
  std::vector<std::span<const std::byte>> blocks;
  std::shared_ptr<const void> lease;
};
/// The prompt is read; every block was announced before this, on the same way.
struct HandoffReady {
  RequestId id;
  std::shared_ptr<engine::Handoff> handoff;
};
/// Stops the work for a request within one step and frees what it holds. Unknown ids are ignored.
struct CancelWork {
  RequestId id;
};

using DecoderStageActor =
    caf::typed_actor<caf::replies_to<ReserveRoom>::with<RoomReserved>, caf::reacts_to<BlocksReady>,
                     caf::reacts_to<HandoffReady>, caf::reacts_to<CancelWork>>;

// --- to the encoder --------------------------------------------------------------------------------------

/// Reads a prompt in chunks and announces its blocks to `decoder`. The stage watches the session.
struct BeginPrefill {
  std::shared_ptr<const GenerateRequest> request;
  SessionActor session;
  DecoderStageActor decoder;
};
/// The last reader of a request's blocks is done with them.
struct LeaseReturned {
  RequestId id;
};

using EncoderStageActor = caf::typed_actor<caf::reacts_to<BeginPrefill>, caf::reacts_to<CancelWork>,
                                           caf::reacts_to<LeaseReturned>>;

// --- to the KV cache -------------------------------------------------------------------------------------

/// Longest cached prefix of a prompt, by chained block keys, oldest first.
struct LookupPrefix {
  RequestId request;
  std::vector<model::BlockKey> keys;
};
using BlockBytes = std::shared_ptr<const std::vector<std::byte>>;
/// Blocks stay pinned until ReleaseLease, or until the asking actor goes down.
struct PrefixLease {
  LeaseId lease;
  std::vector<BlockBytes> blocks;  // of the leading keys that were found
};
/// Offers a block; kept when there is room (best effort, never waits).
struct StoreBlock {
  model::BlockKey key;
  BlockBytes bytes;
};
struct ReleaseLease {
  LeaseId lease;
};
struct CacheUsage {
  int64_t blocks = 0;
  int64_t bytes = 0;
  int64_t capacity_bytes = 0;
  int64_t pinned_blocks = 0;
  int64_t leases = 0;
};
using UsageAtom = caf::atom_constant<caf::atom("usage")>;

using KvCacheActor =
    caf::typed_actor<caf::replies_to<LookupPrefix>::with<PrefixLease>, caf::reacts_to<StoreBlock>,
                     caf::reacts_to<ReleaseLease>,  // unknown lease: ignored, already released
                     caf::replies_to<UsageAtom>::with<CacheUsage>>;

// --- to an Engram table ----------------------------------------------------------------------------------

/// Asks for table rows of one layer.
struct LookupRows {
  LayerId layer = 0;
  std::vector<int64_t> rows;
};
/// [rows, row bytes], codes then scales of each row.
struct EngramRows {
  std::vector<uint8_t> packed;
};

using EngramActor = caf::typed_actor<
    caf::replies_to<LookupRows>::with<EngramRows>>;  // errors: invalid_argument, and the source's

// --- to the router ---------------------------------------------------------------------------------------

struct SubmitRequest {
  std::shared_ptr<const GenerateRequest> request;
  std::shared_ptr<OnceSink> sink;
};
struct CancelRequest {
  RequestId id;
};
/// The encoder no longer works for this request.
struct EncoderFree {
  RequestId id;
};

using RouterActor = caf::typed_actor<
    caf::reacts_to<SubmitRequest>, caf::reacts_to<CancelRequest>, caf::reacts_to<EncoderFree>,
    caf::reacts_to<TickAtom>,
    // Refuses new work from now on; with true, also ends every session. Replies with the requests left.
    caf::replies_to<DrainAtom, bool>::with<int64_t>>;

// --- inspection ------------------------------------------------------------------------------------------

template <class I>
typename I::result_type inspect(I& f, PrefillProgress& x) {
  return f(caf::meta::type_name("PrefillProgress"), x.computed, x.finished);
}
template <class I>
typename I::result_type inspect(I& f, ReplayBegun& x) {
  return f(caf::meta::type_name("ReplayBegun"), x.id);
}
template <class I>
typename I::result_type inspect(I& f, RoomReserved& x) {
  return f(caf::meta::type_name("RoomReserved"), x.id);
}
template <class I>
typename I::result_type inspect(I& f, CancelWork& x) {
  return f(caf::meta::type_name("CancelWork"), x.id);
}
template <class I>
typename I::result_type inspect(I& f, LeaseReturned& x) {
  return f(caf::meta::type_name("LeaseReturned"), x.id);
}
template <class I>
typename I::result_type inspect(I& f, ReleaseLease& x) {
  return f(caf::meta::type_name("ReleaseLease"), x.lease);
}
template <class I>
typename I::result_type inspect(I& f, CacheUsage& x) {
  return f(caf::meta::type_name("CacheUsage"), x.blocks, x.bytes, x.capacity_bytes, x.pinned_blocks,
           x.leases);
}
template <class I>
typename I::result_type inspect(I& f, LookupRows& x) {
  return f(caf::meta::type_name("LookupRows"), x.layer, x.rows);
}
template <class I>
typename I::result_type inspect(I& f, EngramRows& x) {
  return f(caf::meta::type_name("EngramRows"), x.packed);
}
template <class I>
typename I::result_type inspect(I& f, CancelRequest& x) {
  return f(caf::meta::type_name("CancelRequest"), x.id);
}
template <class I>
typename I::result_type inspect(I& f, EncoderFree& x) {
  return f(caf::meta::type_name("EncoderFree"), x.id);
}

}  // namespace cedar::actors

// One process only.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::TokenBatch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::StageFailed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::EndSession)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::ReserveRoom)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::BlocksReady)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::HandoffReady)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::BeginPrefill)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::LookupPrefix)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::PrefixLease)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::StoreBlock)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::SubmitRequest)
