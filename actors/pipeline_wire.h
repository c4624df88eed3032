#pragma once
// What the ranks of an encoder pipeline say to each other, as bytes of calls (transport/calls.h). A call goes from rank to
// rank; each is answered when the one behind it has answered, so that an error of any rank reaches the face. No CAF type
// appears here.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "actors/data_plane.h"
#include "core/ids.h"
#include "core/result.h"
#include "engine/prefill_chunk.h"

namespace cedar::actors {

/// kRunChunk: the rows of one step, on their way through the ranks.
struct PipelineChunk {
  uint64_t face = 0;  // which life of which face; of two, the greater number is the later one
  LayerId cut = 0;    // the receiver's first layer
  std::vector<DataEndpoint> route;  // of the ranks behind the receiver
  std::vector<RequestId> live;      // every prompt that the face still knows; others may go
  engine::PrefillChunk chunk;
  std::vector<std::chrono::milliseconds>
      remaining;  // per part of the chunk: until its request's deadline
  std::vector<std::byte>
      rows;  // transport::serialise(RegionDescriptor), one range: engine/layer_cut.h
};
std::vector<std::byte> encode(const PipelineChunk& chunk);
/// Any bytes are safe input. Errors: invalid_argument. The same holds for the others.
Result<PipelineChunk> decode_chunk(std::span<const std::byte> bytes);

/// The last rank's answer, for each part of the chunk: what PrefillProgress says. The offers are the last rank's.
struct PipelineProgress {
  RequestId id;
  int64_t computed = 0;
  bool finished = false;
  int64_t first_block = 0;
  std::vector<std::byte> blocks, state;  // descriptors; empty: nothing is offered
};
struct PipelineAnswer {
  DataEndpoint owner;
  std::vector<PipelineProgress> parts;
};
std::vector<std::byte> encode(const PipelineAnswer& answer);
Result<PipelineAnswer> decode_answer(std::span<const std::byte> bytes);

/// kReleasePrompt: no more rows of this prompt will come. Answered when nobody reads its blocks any more.
struct PipelineRelease {
  uint64_t face = 0;
  std::vector<DataEndpoint> route;
  RequestId id;
  bool revoke = false;  // the leases end now
};
std::vector<std::byte> encode(const PipelineRelease& release);
Result<PipelineRelease> decode_release(std::span<const std::byte> bytes);

}  // namespace cedar::actors
