#pragma once
// What a cache of KV blocks may take, and where it keeps what. No CAF type appears here.

#include <chrono>
#include <cstdint>
#include <string>

namespace cedar::actors {

struct CacheOptions {
  int64_t bytes = int64_t{64} << 20;  // memory for KV blocks; 0: nothing is kept anywhere
  std::string directory;              // of the disk tier; empty: none
  int64_t disk_bytes = int64_t{64} << 30;
  std::chrono::milliseconds disk_retry{5000};  // to have a directory that could not be had
  std::chrono::seconds retention{72 * 3600};   // storage::SegmentStoreOptions
  /// What blocks mean, besides their keys: model and layout. What others left in the directory is removed.
  std::string identity;
  int64_t window_bytes = int64_t{16} << 20;  // memory for windows of sessions; 0: none
  std::chrono::seconds window_ttl{600};
};

}  // namespace cedar::actors
