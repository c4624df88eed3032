#pragma once
// What the ranks of a decoder pipeline say to each other, as bytes of calls (transport/calls.h). The face speaks to every
// rank itself, except for the rows of a step, which go from rank to rank; each such call is answered when the one behind it
// has answered, with what the last rank has sampled. No CAF type appears here.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "actors/data_plane.h"
#include "core/ids.h"
#include "core/result.h"
#include "engine/decode_engine.h"
#include "engine/decode_rank.h"

namespace cedar::actors {

/// kOpenSequence: a slot and pages.
struct SequenceOpening {
  uint64_t face = 0;  // which life of which face; of two, the greater number is the later one
  RequestId id;
  Position read = 0;
  int64_t tokens = 0;
  std::optional<engine::DecodeRequest> request;  // for the rank that samples
};
/// kImportSequenceBlock.
struct SequenceBlock {
  uint64_t face = 0;
  RequestId id;
  int64_t index = 0;
  std::span<const std::byte> bytes;  // of the message
};
/// kStartSequence: the state that an encoder has handed over.
struct SequenceStart {
  uint64_t face = 0;
  RequestId id;
  std::vector<std::byte>
      state;  // transport::serialise(RegionDescriptor), one range: engine/handoff.h as bytes
};
/// kCloseSequence: no more rows of it will come.
struct SequenceClose {
  uint64_t face = 0;
  RequestId id;
};
/// kRunStep: the rows of one step, on their way through the ranks.
struct PipelineStep {
  uint64_t face = 0;
  LayerId cut = 0;                  // the receiver's first layer
  std::vector<DataEndpoint> route;  // of the ranks behind the receiver
  uint64_t newest = 0;              // the latest id that the face had opened
  std::vector<RequestId> live;      // up to that one, all that it still knows; others may go
  engine::DecodeChunk chunk;
  std::vector<std::byte>
      rows;  // transport::serialise(RegionDescriptor), one range: engine/layer_cut.h
};

std::vector<std::byte> encode(const SequenceOpening& message);
std::vector<std::byte> encode(const SequenceBlock& message);
std::vector<std::byte> encode(const SequenceStart& message);
std::vector<std::byte> encode(const SequenceClose& message);
std::vector<std::byte> encode(const PipelineStep& message);
/// The answer to a step.
std::vector<std::byte> encode(const std::vector<engine::TokenEvent>& events);

// Any bytes are safe input. Errors: invalid_argument.
Result<SequenceOpening> decode_opening(std::span<const std::byte> bytes);
Result<SequenceBlock> decode_block(std::span<const std::byte> bytes);
Result<SequenceStart> decode_start(std::span<const std::byte> bytes);
Result<SequenceClose> decode_close(std::span<const std::byte> bytes);
Result<PipelineStep> decode_step(std::span<const std::byte> bytes);
Result<std::vector<engine::TokenEvent>> decode_events(std::span<const std::byte> bytes);

}  // namespace cedar::actors
