#pragma once
// The disk tier of a cache: a segment store that may be missing. A directory that another process holds or a disk that
// fails costs hits, never the cache. storage/segment_store.h has the rest. One thread.

#include <chrono>
#include <functional>
#include <memory>
#include <span>

#include "actors/cache_options.h"
#include "actors/messages.h"
#include "model/block_key.h"
#include "storage/segment_store.h"

namespace cedar::actors {

class CacheDisk {
 public:
  CacheDisk(const CacheOptions& options, int64_t block_bytes)
      : options_(options), block_bytes_(block_bytes) {}

  /// Opens the store where one is wanted and it is time to try: the directory's former owner may be about to end. Says once
  /// why it cannot.
  void open();
  /// Writes what is on its way, waits for reads.
  void close() { store_.reset(); }

  bool is_open() const { return store_ != nullptr; }
  /// How many leading keys are there. Reads of them may still fail.
  int64_t prefix(std::span<const model::BlockKey> keys) const;
  bool has(const model::BlockKey& key) const { return prefix({&key, 1}) == 1; }
  /// Behind the caller's back; what finds no room on its way is dropped and counted.
  void write(const model::BlockKey& key, std::span<const std::byte> bytes);
  /// SegmentStore::read. `done` comes from another thread, or from inside this call.
  void read(const model::BlockKey& key, std::span<std::byte> target,
            std::function<void(Status)> done);
  /// Fills in disk_blocks, disk_bytes, disk_capacity_bytes, disk_written_blocks, disk_dropped_blocks and disk_errors.
  void count(CacheUsage& usage) const;

 private:
  CacheOptions options_;
  int64_t block_bytes_;
  std::unique_ptr<storage::SegmentStore> store_;
  std::chrono::steady_clock::time_point next_try_{};
  int64_t failed_tries_ = 0;
};

}  // namespace cedar::actors
