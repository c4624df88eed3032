#pragma once
// Methods of transport::Calls: every number of the cluster is given out here. A number whose request or reply changes is
// not used again.

#include "transport/calls.h"

namespace cedar::actors {

// Engram service: 1 to 15.
inline constexpr transport::CallMethod kFetchEngramRows = 1;

// Indexer service (index_messages.h): 16 to 31.
inline constexpr transport::CallMethod kAppendIndexKeys = 16;
inline constexpr transport::CallMethod kScanIndexKeys = 17;
inline constexpr transport::CallMethod kCloseIndexPart = 18;

// Pipeline stages: 32 to 63.
inline constexpr transport::CallMethod kRunChunk = 32;  // actors/pipeline_wire.h
inline constexpr transport::CallMethod kReleasePrompt = 33;
inline constexpr transport::CallMethod kOpenSequence = 34;  // and these: actors/decoder_wire.h
inline constexpr transport::CallMethod kImportSequenceBlock = 35;
inline constexpr transport::CallMethod kStartSequence = 36;
inline constexpr transport::CallMethod kCloseSequence = 37;
inline constexpr transport::CallMethod kRunStep = 38;

}  // namespace cedar::actors
