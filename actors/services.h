#pragma once
// Who else works in a cluster, besides encoders and decoders: roles that answer calls of the data plane, and what is known
// of the nodes that have them. No CAF type appears here.

#include <cstdint>
#include <string>
#include <vector>

#include "actors/data_plane.h"

namespace cedar::actors {

/// Values are stable: they cross process boundaries.
enum class ServiceRole : uint8_t {
  engram = 1,
  indexer = 2,
  cache = 3,
  encoder_part = 4,  // a layer range that is not the face of its pipeline
  decoder_part = 5,
};

/// One role of one node.
struct Service {
  ServiceRole role = ServiceRole::engram;
  int32_t shard = 0;  // of shards; nodes with the same shard are replicas
  int32_t shards = 1;
  std::string detail;  // what else the role's users must know; a few dozen bytes
  friend bool operator==(const Service&, const Service&) = default;
};

/// One node that has services, as a gateway lists it.
struct DirectoryEntry {
  std::string node;
  DataEndpoint endpoint;
  std::vector<Service> services;
  friend bool operator==(const DirectoryEntry&, const DirectoryEntry&) = default;
};

/// What a gateway lists, and which of its lists it is. Versions of two lives of a gateway differ.
struct Directory {
  uint64_t version = 0;  // 0: none
  std::vector<DirectoryEntry> entries;
};

}  // namespace cedar::actors
