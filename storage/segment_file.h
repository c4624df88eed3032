#pragma once
// One segment on disk. Its space is taken when it is made, so that a full disk shows then and not in the middle of a value.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "storage/segment_format.h"

namespace cedar::storage {

class SegmentFile {
 public:
  /// Errors: io_error naming file and reason.
  static Result<std::unique_ptr<SegmentFile>> create(const std::string& directory,
                                                     const SegmentHeader& header);
  /// Errors: io_error, those of decode_segment_header(), and invalid_argument for what is no regular file, is shorter than
  /// its header says, or has another segment's name.
  static Result<std::unique_ptr<SegmentFile>> open(const std::string& path, bool writable);
  ~SegmentFile();
  SegmentFile(const SegmentFile&) = delete;
  SegmentFile& operator=(const SegmentFile&) = delete;

  struct Contents {
    std::vector<SlotHeader> slots;  // those that hold nothing have an empty key
    bool finished = false;          // by its footer; otherwise slot by slot
    int64_t torn = 0;               // slots whose header is neither whole nor empty
    int64_t used = 0;               // slots up to the last that is not empty
  };
  Result<Contents> read_headers() const;
  /// A whole slot, checked: header, key and value. Errors: io_error, checksum_mismatch.
  Status read_slot(int64_t slot, const SlotHeader& header, std::span<std::byte> to) const;
  /// Writes the footer. Blocks until it is on the disk.
  Status finish(std::span<const SlotHeader> slots);
  /// Takes the footer away, so that more can be written: what a crash leaves is read slot by slot again.
  Status reopen();
  Status sync();
  /// Gone from the directory; its bytes stay until the object goes.
  void remove();

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  const SegmentHeader& header() const { return header_; }

 private:
  SegmentFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;
  SegmentHeader header_;
};

/// "segment-0000000000000001.seg" of a directory, by number.
std::vector<std::string> segment_paths(const std::string& directory);

/// Of the value in a slot that was read whole. Errors: checksum_mismatch.
Status check_slot(std::span<const std::byte> slot, const SegmentShape& shape, uint64_t segment,
                  const StoreKey& key);

/// One process at a time owns a directory. Released by the kernel when the process ends, however it ends.
class DirectoryLock {
 public:
  /// Makes the directory if it is missing. Errors: unavailable (another process has it), io_error.
  static Result<DirectoryLock> take(const std::string& directory);
  DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  DirectoryLock& operator=(DirectoryLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  DirectoryLock() = default;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace cedar::storage
