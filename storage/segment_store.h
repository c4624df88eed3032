#pragma once
// Values of one size under keys that name their bytes for ever, on a local disk: the SSD tier. A cache: it may forget,
// it never lies. Values lie in segment files; when the byte limit is reached the oldest segment goes as a whole, so nothing
// is ever moved or compacted. docs/formats/segment.md.
//
// Writes are best effort: they are staged in memory of fixed size, and what finds no room there is dropped and counted, so a
// slow or full disk never slows whoever writes. A value can be read once its write has ended.
//
// Threads: every method may be called from any thread. Callbacks come from threads of the store and must not block.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/result.h"
#include "storage/file_io.h"
#include "storage/segment_format.h"

namespace cedar::storage {

struct SegmentStoreOptions {
  std::string directory;
  std::string identity;  // of what the values mean; what another identity has left here is removed
  int64_t value_bytes = 0;
  int64_t max_bytes = 0;                         // of all files together, at any moment
  int64_t segment_bytes = int64_t{256} << 20;    // less where max_bytes is small
  int64_t max_staged_bytes = int64_t{64} << 20;  // of writes under way; more: dropped
  int32_t max_reads = 256;                       // under way; more: overloaded
  int32_t depth = 32;                            // operations at the disk at a time
  FileIoKind io = FileIoKind::automatic;
  std::chrono::milliseconds sync_interval{1000};
  /// After a segment could not be made (a full disk), so long all writes are dropped.
  std::chrono::milliseconds retry_interval{5000};
  std::chrono::seconds retention{72 * 3600};  // what goes earlier is counted apart
};

struct SegmentStoreStats {
  int64_t values = 0;
  int64_t segments = 0;
  int64_t bytes = 0;  // of files
  int64_t staged_bytes = 0;
  int64_t reads_under_way = 0;
  // Since it was opened.
  int64_t reads = 0;  // good ones
  int64_t missed = 0;
  int64_t corrupt = 0;  // values that were found damaged, when they were read
  int64_t read_errors = 0;
  int64_t written = 0;
  int64_t known = 0;            // writes of what is here already
  int64_t dropped_no_room = 0;  // writes
  int64_t write_errors = 0;     // writes
  int64_t evicted = 0;          // values that went with their segment
  int64_t evicted_young = 0;    // of these, before their retention was over
  int64_t torn = 0;             // slots that were found torn when the store was opened
  int64_t foreign = 0;  // segments of another identity, shape or version that were removed then
};

class SegmentStore {
 public:
  /// Reads what is there: one read per finished segment, one per slot of the last. Errors: invalid_config naming option and
  /// value, unavailable (another process has the directory), io_error, unsupported (io_uring).
  static Result<std::unique_ptr<SegmentStore>> open(const SegmentStoreOptions& options);
  /// Writes what is staged.
  ~SegmentStore();
  SegmentStore(const SegmentStore&) = delete;
  SegmentStore& operator=(const SegmentStore&) = delete;

  /// How many leading keys are here. Reads of them may still fail: segments go.
  int64_t prefix(std::span<const StoreKey> keys) const;
  bool contains(const StoreKey& key) const { return prefix({&key, 1}) == 1; }

  /// `target` (value_bytes) stays until `done`, which is called exactly once, maybe from inside this call. Errors: not_found,
  /// checksum_mismatch (and the value is forgotten), io_error, overloaded.
  void read(const StoreKey& key, std::span<std::byte> target, std::function<void(Status)> done);
  /// REQUIRES: value.size() == value_bytes. False: dropped.
  bool write(const StoreKey& key, std::span<const std::byte> value);

  /// Until everything staged so far has been written and synced. Errors: deadline_exceeded.
  Status flush(std::chrono::milliseconds timeout);
  SegmentStoreStats stats() const;
  std::string_view io_name() const;

 private:
  struct Impl;
  explicit SegmentStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cedar::storage
