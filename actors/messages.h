#pragma once
// The messages between actors and the typed handles that take them.
//
// The session is the hub: encoder and decoder never hold a handle of each other, so that a gateway needs connections to its
// stages and the stages need none among themselves; only bytes go from one to the other, over the data plane. Of a
// request's messages the reservation and the question for another stage have a reply; all others are one-way, and the end
// of the session releases everything.
//
// Messages between processes have inspect() and are registered by add_message_types(); those that hold bytes, sinks or
// answers by pointer stay in one process and are marked at the end of this file.

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/atom.hpp>
#include <caf/meta/type_name.hpp>
#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include <chrono>
#include <compare>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "actors/client.h"
#include "actors/data_plane.h"
#include "actors/once_sink.h"
#include "actors/wire_values.h"
#include "core/ids.h"
#include "model/block_key.h"

namespace cedar::actors {

using StepAtom = caf::atom_constant<caf::atom("step")>;
using TickAtom = caf::atom_constant<caf::atom("tick")>;
using DrainAtom = caf::atom_constant<caf::atom("drain")>;

// --- values ----------------------------------------------------------------------------------------------

/// One hand-off of one request, from its reservation to its last token. Random: stages serve several gateways, whose
/// request ids may be the same. Everyone who speaks of the hand-off uses this id.
using HandoffId = StrongId<struct HandoffIdTag, uint64_t>;

/// One encoder's work for a hand-off. A second encoder gets the next attempt; what comes of an older one is dropped.
struct Attempt {
  HandoffId handoff;
  uint32_t number = 0;
  friend auto operator<=>(const Attempt&, const Attempt&) = default;
};

/// A request by pointer within a process, and its whole value between two.
struct SharedRequest {
  std::shared_ptr<const GenerateRequest> value;  // not null
  const GenerateRequest& operator*() const { return *value; }
  const GenerateRequest* operator->() const { return value.get(); }
};

/// Bytes that wait at their owner to be fetched.
struct Offer {
  std::vector<uint8_t>
      descriptor;  // transport::serialise(RegionDescriptor); empty: nothing is offered
  DataEndpoint owner;
  bool empty() const { return descriptor.empty(); }
};

// --- to a session ----------------------------------------------------------------------------------------

/// The encoder computed rows of this prompt, or found the first of them in the cache.
struct PrefillProgress {
  Attempt attempt;
  int64_t computed = 0;     // prompt tokens read so far, the cached ones included
  bool finished = false;    // nothing more will be offered
  int64_t first_block = 0;  // of `blocks`, whose ranges are whole KV blocks in order
  Offer blocks;
  Offer state;                // one range, engine/handoff.h as bytes; when finished
  int64_t cached_blocks = 0;  // taken over from the cache and not offered here
  Offer for_cache;  // the same blocks for a second reader, where BeginPrefill asked for it
  ResumeKind resume = ResumeKind::none;
  int64_t replayed = 0;  // prompt tokens computed again for their windows so far
  /// The state at the end of the prompt's last whole block, for the next turn: one range, engine/handoff.h as bytes. Where
  /// BeginPrefill asked for it.
  int64_t windows_at = 0;
  Offer windows;
};
/// Tokens of the answer have completed a KV block. Of prompt and answer it is number `index`.
struct BlockWritten {
  HandoffId id;
  int64_t index = 0;
  Offer block;
};
/// The decoder has taken over everything and begins its replay.
struct ReplayBegun {
  HandoffId id;
};
/// What one decoder step produced for this request.
struct TokenBatch {
  HandoffId id;
  std::vector<engine::TokenEvent> tokens;
};
/// The decoder could not fetch what an encoder offered; its reservation stands.
struct PullFailed {
  Attempt attempt;
  Error error;
};
/// A stage gave up on this hand-off and has released it.
struct StageFailed {
  Attempt attempt;  // number 0: the decoder
  Error error;
};
/// Ends the session. `code` is cancelled (the client asked) or deadline_exceeded.
struct EndSession {
  Errc code = Errc::cancelled;
};

using SessionActor = caf::typed_actor<caf::reacts_to<PrefillProgress>, caf::reacts_to<ReplayBegun>,
                                      caf::reacts_to<TokenBatch>, caf::reacts_to<BlockWritten>,
                                      caf::reacts_to<PullFailed>, caf::reacts_to<StageFailed>,
                                      caf::reacts_to<EndSession>>;

// --- to the decoder --------------------------------------------------------------------------------------

/// Takes a sequence slot and worst-case pages. The stage watches the session and frees everything when it
/// goes down. Errors: context_too_long, invalid_argument, overloaded (no room, and nothing will free any).
/// While other sequences hold the room, the reply waits.
struct ReserveRoom {
  HandoffId id;
  SharedRequest request;
  SessionActor session;
  DataEndpoint encoder;                 // connected to meanwhile
  std::chrono::milliseconds remaining;  // until the request's deadline
  bool keep_blocks = false;             // offer those that the answer completes (BlockWritten)
};
struct RoomReserved {
  HandoffId id;
};
/// Fetch these KV blocks. What is here already is not fetched again.
struct ImportBlocks {
  Attempt attempt;
  int64_t first = 0;
  Offer blocks;
};
/// The prompt is read and every block was announced: fetch the state too, and begin when all of it is here.
struct TakeOver {
  Attempt attempt;
  Offer state;
};
/// Stops the work for a hand-off within one step and frees what it holds. Unknown ones are ignored. The decoder does not
/// look at the attempt's number.
struct CancelWork {
  Attempt attempt;
};

using DecoderStageActor =
    caf::typed_actor<caf::replies_to<ReserveRoom>::with<RoomReserved>, caf::reacts_to<ImportBlocks>,
                     caf::reacts_to<TakeOver>, caf::reacts_to<CancelWork>>;

// --- to the encoder --------------------------------------------------------------------------------------

/// Reads a prompt in chunks and tells the session what it offers. The stage watches the session.
struct BeginPrefill {
  Attempt attempt;  // numbers begin with 1
  SharedRequest request;
  SessionActor session;
  std::chrono::milliseconds remaining;  // until the request's deadline; the leases end then
  /// Leading blocks that wait at a cache, a range each. The encoder may find that they save nothing.
  int64_t cached_blocks = 0;
  Offer cached;
  int64_t keep_blocks =
      0;  // of the prompt's first blocks, those computed are offered for a cache, too
  /// The state behind the first `windows_at` tokens, from an earlier turn; 0: there is none.
  int64_t windows_at = 0;
  Offer windows;
  bool keep_windows = false;  // offer those of this prompt
};
/// A lease on bytes of one prompt has ended. From the stage's own data plane.
struct LeaseReturned {
  RequestId work;
  LeaseId lease;
};

using EncoderStageActor = caf::typed_actor<caf::reacts_to<BeginPrefill>, caf::reacts_to<CancelWork>,
                                           caf::reacts_to<LeaseReturned>>;

// --- to the KV cache -------------------------------------------------------------------------------------

/// Longest cached prefix of a prompt, by chained block keys, oldest first.
struct LookupPrefix {
  std::vector<model::BlockKey> keys;
  std::chrono::milliseconds remaining;  // until the request's deadline; the offers end then
};
/// What was found, offered to two readers, a range a block. It stays where it is until both are done, ReleaseLease, or the
/// asking actor goes down.
struct PrefixLease {
  LeaseId lease;
  int64_t blocks = 0;  // 0: nothing, and there is no lease
  Offer for_encoder;
  Offer for_decoder;
  int64_t disk_blocks = 0;  // of `blocks`, brought from the disk for this
  int64_t windows_at = 0;   // tokens, a whole number of blocks, at most `blocks` of them; 0: none
  Offer windows;            // for the encoder
};
/// Blocks to fetch and keep: best effort, never waits, no reply. The cache ends their lease.
struct StoreBlocks {
  int64_t first = 0;
  std::vector<model::BlockKey>
      chain;  // the key before block `first`, then one per range of `blocks`
  Offer blocks;
};
/// The state behind the block of this key, to fetch and keep for the next turn: as StoreBlocks.
struct StoreWindows {
  model::BlockKey key;
  int64_t windows_at = 0;  // tokens
  Offer windows;
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
  // Since the start.
  int64_t lookups = 0;
  int64_t hit_blocks = 0;
  int64_t stored_blocks = 0;
  int64_t dropped_blocks = 0;  // offered and not kept
  int64_t evicted_blocks = 0;
  // The disk tier, the last four since the start.
  int64_t disk_blocks = 0;
  int64_t disk_bytes = 0;
  int64_t disk_capacity_bytes = 0;
  int64_t disk_hit_blocks = 0;
  int64_t disk_written_blocks = 0;
  int64_t disk_dropped_blocks = 0;
  int64_t disk_errors = 0;
  // Windows of sessions between turns, the last four since the start.
  int64_t windows = 0;
  int64_t window_bytes = 0;
  int64_t window_capacity_bytes = 0;
  int64_t window_lookups = 0;  // that found blocks
  int64_t window_hits = 0;
  int64_t windows_expired = 0;
  int64_t windows_evicted = 0;
};
using UsageAtom = caf::atom_constant<caf::atom("usage")>;

using KvCacheActor =
    caf::typed_actor<caf::replies_to<LookupPrefix>::with<PrefixLease>, caf::reacts_to<StoreBlocks>,
                     caf::reacts_to<StoreWindows>,
                     caf::reacts_to<ReleaseLease>,  // unknown lease: ignored, already released
                     caf::replies_to<UsageAtom>::with<CacheUsage>>;

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
/// A stage and where its process listens on the data plane.
struct EncoderChoice {
  EncoderStageActor stage;
  DataEndpoint endpoint;
};
struct DecoderChoice {
  DecoderStageActor stage;
  DataEndpoint endpoint;
};
/// The cache that has or gets a request's blocks. Null: there is none.
struct CacheChoice {
  KvCacheActor cache;
  std::string fingerprint;  // of the model whose blocks they are
  int64_t block_tokens = 0;
};
/// The session's encoder is lost or useless to its decoder: another one, with room promised there instead. While one
/// may come soon, the reply waits. Errors: unavailable (no other stage).
struct ReplaceEncoder {
  RequestId id;
  EncoderStageActor lost;
};
/// The same for the decoder; a sequence starts again from its prompt and the tokens it has, so the encoder of the request
/// is promised room again, too, if it had been let go.
struct ReplaceDecoder {
  RequestId id;
  DecoderStageActor lost;
};

using RouterActor = caf::typed_actor<
    caf::reacts_to<SubmitRequest>, caf::reacts_to<CancelRequest>, caf::reacts_to<EncoderFree>,
    caf::replies_to<ReplaceEncoder>::with<EncoderChoice>,
    caf::replies_to<ReplaceDecoder>::with<EncoderChoice, DecoderChoice>, caf::reacts_to<TickAtom>,
    // Refuses new work from now on; with true, also ends every session. Replies with the requests left.
    caf::replies_to<DrainAtom, bool>::with<int64_t>>;

// --- inspection ------------------------------------------------------------------------------------------

template <class I>
typename I::result_type inspect(I& f, SharedRequest& x) {
  if constexpr (I::writes_state) {
    auto loaded = std::make_shared<GenerateRequest>();
    const auto error = f(*loaded);
    x.value = std::move(loaded);
    return error;
  } else {
    return f(const_cast<GenerateRequest&>(*x.value));  // read only
  }
}
template <class I>
typename I::result_type inspect(I& f, Attempt& x) {
  return f(caf::meta::type_name("Attempt"), x.handoff, x.number);
}
template <class I>
typename I::result_type inspect(I& f, DataEndpoint& x) {
  return f(caf::meta::type_name("DataEndpoint"), x.host, x.port, x.node, x.generation);
}
template <class I>
typename I::result_type inspect(I& f, Offer& x) {
  return f(caf::meta::type_name("Offer"), x.descriptor, x.owner);
}
template <class I>
typename I::result_type inspect(I& f, PrefillProgress& x) {
  return f(caf::meta::type_name("PrefillProgress"), x.attempt, x.computed, x.finished,
           x.first_block, x.blocks, x.state, x.cached_blocks, x.for_cache, x.resume, x.replayed,
           x.windows_at, x.windows);
}
template <class I>
typename I::result_type inspect(I& f, BlockWritten& x) {
  return f(caf::meta::type_name("BlockWritten"), x.id, x.index, x.block);
}
template <class I>
typename I::result_type inspect(I& f, ReplayBegun& x) {
  return f(caf::meta::type_name("ReplayBegun"), x.id);
}
template <class I>
typename I::result_type inspect(I& f, TokenBatch& x) {
  return f(caf::meta::type_name("TokenBatch"), x.id, x.tokens);
}
template <class I>
typename I::result_type inspect(I& f, PullFailed& x) {
  return f(caf::meta::type_name("PullFailed"), x.attempt, x.error);
}
template <class I>
typename I::result_type inspect(I& f, StageFailed& x) {
  return f(caf::meta::type_name("StageFailed"), x.attempt, x.error);
}
template <class I>
typename I::result_type inspect(I& f, ReserveRoom& x) {
  return f(caf::meta::type_name("ReserveRoom"), x.id, x.request, x.session, x.encoder, x.remaining,
           x.keep_blocks);
}
template <class I>
typename I::result_type inspect(I& f, RoomReserved& x) {
  return f(caf::meta::type_name("RoomReserved"), x.id);
}
template <class I>
typename I::result_type inspect(I& f, ImportBlocks& x) {
  return f(caf::meta::type_name("ImportBlocks"), x.attempt, x.first, x.blocks);
}
template <class I>
typename I::result_type inspect(I& f, TakeOver& x) {
  return f(caf::meta::type_name("TakeOver"), x.attempt, x.state);
}
template <class I>
typename I::result_type inspect(I& f, CancelWork& x) {
  return f(caf::meta::type_name("CancelWork"), x.attempt);
}
template <class I>
typename I::result_type inspect(I& f, BeginPrefill& x) {
  return f(caf::meta::type_name("BeginPrefill"), x.attempt, x.request, x.session, x.remaining,
           x.cached_blocks, x.cached, x.keep_blocks, x.windows_at, x.windows, x.keep_windows);
}
template <class I>
typename I::result_type inspect(I& f, LeaseReturned& x) {
  return f(caf::meta::type_name("LeaseReturned"), x.work, x.lease);
}
template <class I>
typename I::result_type inspect(I& f, LookupPrefix& x) {
  return f(caf::meta::type_name("LookupPrefix"), x.keys, x.remaining);
}
template <class I>
typename I::result_type inspect(I& f, PrefixLease& x) {
  return f(caf::meta::type_name("PrefixLease"), x.lease, x.blocks, x.for_encoder, x.for_decoder,
           x.disk_blocks, x.windows_at, x.windows);
}
template <class I>
typename I::result_type inspect(I& f, StoreBlocks& x) {
  return f(caf::meta::type_name("StoreBlocks"), x.first, x.chain, x.blocks);
}
template <class I>
typename I::result_type inspect(I& f, StoreWindows& x) {
  return f(caf::meta::type_name("StoreWindows"), x.key, x.windows_at, x.windows);
}
template <class I>
typename I::result_type inspect(I& f, ReleaseLease& x) {
  return f(caf::meta::type_name("ReleaseLease"), x.lease);
}
template <class I>
typename I::result_type inspect(I& f, CacheUsage& x) {
  return f(caf::meta::type_name("CacheUsage"), x.blocks, x.bytes, x.capacity_bytes, x.pinned_blocks,
           x.leases, x.lookups, x.hit_blocks, x.stored_blocks, x.dropped_blocks, x.evicted_blocks,
           x.disk_blocks, x.disk_bytes, x.disk_capacity_bytes, x.disk_hit_blocks,
           x.disk_written_blocks, x.disk_dropped_blocks, x.disk_errors, x.windows, x.window_bytes,
           x.window_capacity_bytes, x.window_lookups, x.window_hits, x.windows_expired,
           x.windows_evicted);
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
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::EndSession)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::SubmitRequest)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::EncoderChoice)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::DecoderChoice)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::ReplaceEncoder)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(cedar::actors::ReplaceDecoder)
