#include "storage/segment_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/crc32c.h"
#include "storage/aligned_memory.h"

namespace cedar::storage {
namespace {

constexpr const char* kPrefix = "segment-";
constexpr const char* kSuffix = ".seg";

std::string file_name(uint64_t number) {
  char name[64];
  std::snprintf(name, sizeof name, "%s%016llx%s", kPrefix, static_cast<unsigned long long>(number),
                kSuffix);
  return name;
}

Error io_error(const std::string& what, const std::string& path) {
  return make_error(Errc::io_error, what + ' ' + path + ": " + std::strerror(errno));
}

/// Past the page cache where the file system can: cached blocks would be kept twice.
int open_direct(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_DIRECT, 0640);
  if (fd >= 0 || errno != EINVAL) return fd;
  return ::open(path.c_str(), flags | O_CLOEXEC, 0640);
}

Status read_at(int fd, const std::string& path, std::span<std::byte> to, int64_t offset) {
  size_t done = 0;
  while (done < to.size()) {
    const ssize_t moved =
        ::pread(fd, to.data() + done, to.size() - done, offset + static_cast<int64_t>(done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return io_error("cannot read", path);
    if (moved == 0) return make_error(Errc::io_error, path + " is shorter than its header says");
    done += static_cast<size_t>(moved);
  }
  return {};
}

Status write_at(int fd, const std::string& path, std::span<const std::byte> from, int64_t offset) {
  size_t done = 0;
  while (done < from.size()) {
    const ssize_t moved =
        ::pwrite(fd, from.data() + done, from.size() - done, offset + static_cast<int64_t>(done));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return io_error("cannot write", path);
    done += static_cast<size_t>(moved);
  }
  return {};
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

Result<std::unique_ptr<SegmentFile>> SegmentFile::create(const std::string& directory,
                                                         const SegmentHeader& header) {
  const std::string path = directory + '/' + file_name(header.number);
  const int fd = open_direct(path, O_RDWR | O_CREAT | O_EXCL);
  if (fd < 0) return io_error("cannot create", path);
  std::unique_ptr<SegmentFile> file(new SegmentFile(path, fd));
  file->header_ = header;
  const Status made = [&]() -> Status {
    if (const int error = ::posix_fallocate(fd, 0, header.shape.file_bytes()); error != 0) {
      errno = error;
      return io_error("cannot take " + std::to_string(header.shape.file_bytes()) + " bytes for",
                      path);
    }
    AlignedMemory page(kSegmentHeaderBytes);
    encode(header, page.span());
    CEDAR_CHECK_OK(write_at(fd, path, page.span(), 0));
    return file->sync();
  }();
  if (!made) {
    file->remove();
    return made.error();
  }
  return file;
}

Result<std::unique_ptr<SegmentFile>> SegmentFile::open(const std::string& path, bool writable) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return io_error("cannot look at", path);
  // A link leads out of the directory that is locked, and the other end of a pipe may never come.
  if (!S_ISREG(status.st_mode)) {
    return make_error(Errc::invalid_argument, path + ": no regular file");
  }
  const int fd = open_direct(path, writable ? O_RDWR : O_RDONLY);
  if (fd < 0) return io_error("cannot open", path);
  std::unique_ptr<SegmentFile> file(new SegmentFile(path, fd));
  if (::fstat(fd, &status) != 0) return io_error("cannot look at", path);
  if (!S_ISREG(status.st_mode) || status.st_size < kSegmentHeaderBytes) {
    return make_error(Errc::invalid_argument, path + ": no whole segment header");
  }
  AlignedMemory page(kSegmentHeaderBytes);
  CEDAR_CHECK_OK(read_at(fd, path, page.span(), 0));
  auto header = decode_segment_header(page.span());
  if (!header) {
    return make_error(header.error().code, path + ": " + header.error().context);
  }
  file->header_ = std::move(*header);
  // A copy under another name: two segments of one number, or a number whose name is taken.
  if (std::filesystem::path(path).filename() != file_name(file->header_.number)) {
    return make_error(Errc::invalid_argument,
                      path + ": by its header it is " + file_name(file->header_.number));
  }
  // Whoever believes the header's sizes may then read as much.
  const SegmentShape& shape = file->header_.shape;
  if (shape.value_bytes <= 0 || shape.value_bytes > status.st_size || shape.slots <= 0 ||
      shape.slots > status.st_size / kFileAlignment || shape.file_bytes() > status.st_size) {
    return make_error(Errc::invalid_argument, path + ": the file is shorter than its header says");
  }
  return file;
}

SegmentFile::~SegmentFile() { ::close(fd_); }

Result<SegmentFile::Contents> SegmentFile::read_headers() const {
  const SegmentShape& shape = header_.shape;
  Contents contents;
  AlignedMemory footer(shape.footer_bytes());
  CEDAR_CHECK_OK(read_at(fd_, path_, footer.span(), shape.footer_offset()));
  if (auto slots = decode_footer(footer.span(), header_.number, shape)) {
    contents.slots = std::move(*slots);
    contents.finished = true;
    for (size_t i = 0; i < contents.slots.size(); ++i) {
      if (contents.slots[i].key != StoreKey{}) contents.used = static_cast<int64_t>(i) + 1;
    }
    return contents;
  }
  contents.slots.resize(static_cast<size_t>(shape.slots));
  AlignedMemory page(kFileAlignment);
  for (int64_t slot = 0; slot < shape.slots; ++slot) {
    CEDAR_CHECK_OK(read_at(fd_, path_, page.span(), shape.slot_offset(slot)));
    const auto head = page.span().first(static_cast<size_t>(kSlotHeaderBytes));
    if (const auto header = decode_slot_header(head, header_.number)) {
      contents.slots[static_cast<size_t>(slot)] = *header;
      contents.used = slot + 1;
    } else if (!all_zero(head)) {
      ++contents.torn;
      contents.used = slot + 1;
    }
  }
  return contents;
}

Status check_slot(std::span<const std::byte> slot, const SegmentShape& shape, uint64_t segment,
                  const StoreKey& key) {
  const auto header = decode_slot_header(slot, segment);
  if (!header || header->key != key) {
    return make_error(Errc::checksum_mismatch, "the slot's header is torn");
  }
  const auto value =
      slot.subspan(static_cast<size_t>(kSlotHeaderBytes), static_cast<size_t>(shape.value_bytes));
  if (crc32c(value) != header->value_crc32c) {
    return make_error(Errc::checksum_mismatch, "the value's checksum differs");
  }
  return {};
}

Status SegmentFile::read_slot(int64_t slot, const SlotHeader& header,
                              std::span<std::byte> to) const {
  AlignedMemory memory(header_.shape.slot_bytes());
  CEDAR_CHECK_OK(read_at(fd_, path_, memory.span(), header_.shape.slot_offset(slot)));
  CEDAR_CHECK_OK(check_slot(memory.span(), header_.shape, header_.number, header.key));
  std::copy_n(memory.data() + kSlotHeaderBytes, header_.shape.value_bytes, to.data());
  return {};
}

Status SegmentFile::finish(std::span<const SlotHeader> slots) {
  // The slots first: a footer promises that they are there.
  CEDAR_CHECK_OK(sync());
  AlignedMemory footer(header_.shape.footer_bytes());
  encode_footer(slots, header_.shape, footer.span());
  CEDAR_CHECK_OK(write_at(fd_, path_, footer.span(), header_.shape.footer_offset()));
  return sync();
}

Status SegmentFile::reopen() {
  const AlignedMemory nothing(kFileAlignment);
  CEDAR_CHECK_OK(write_at(fd_, path_, nothing.span(), header_.shape.footer_offset()));
  return sync();
}

Status SegmentFile::sync() {
  if (::fdatasync(fd_) != 0) return io_error("cannot sync", path_);
  return {};
}

void SegmentFile::remove() { ::unlink(path_.c_str()); }

std::vector<std::string> segment_paths(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(kPrefix, 0) == 0 && entry.path().extension() == kSuffix) {
      paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Result<DirectoryLock> DirectoryLock::take(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return make_error(Errc::io_error, "cannot make " + directory + ": " + error.message());
  }
  const std::string path = directory + "/lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0640);
  if (fd < 0) return io_error("cannot open", path);
  DirectoryLock lock(fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK) {
    return make_error(Errc::unavailable, directory + " is in use by another process");
  }
  return io_error("cannot lock", path);
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace cedar::storage
