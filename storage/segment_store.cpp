#include "storage/segment_store.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <limits>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/crc32c.h"
#include "core/log.h"
#include "storage/aligned_memory.h"
#include "storage/segment_index.h"

namespace cedar::storage {
namespace {

using Clock = std::chrono::steady_clock;

/// So that one segment that goes leaves most of what there is.
constexpr int64_t kMinSegments = 8;

uint64_t unix_seconds() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

Status check(const SegmentStoreOptions& options) {
  const auto bad = [](const std::string& what, int64_t value) {
    return make_error(Errc::invalid_config, what + ", got " + std::to_string(value));
  };
  if (options.directory.empty()) return make_error(Errc::invalid_config, "directory is empty");
  if (options.identity.size() > SegmentHeader::kMaxIdentity) {
    return bad("identity may have 256 bytes", static_cast<int64_t>(options.identity.size()));
  }
  if (options.value_bytes < 1) return bad("value_bytes must be positive", options.value_bytes);
  if (options.depth < 1) return bad("depth must be positive", options.depth);
  if (options.max_reads < 1) return bad("max_reads must be positive", options.max_reads);
  const int64_t least = kMinSegments * SegmentShape{options.value_bytes, 1}.file_bytes();
  if (options.max_bytes < least) {
    return bad("max_bytes must be at least " + std::to_string(least) + " for values of " +
                   std::to_string(options.value_bytes) + " bytes",
               options.max_bytes);
  }
  return {};
}

SegmentShape shape_of(const SegmentStoreOptions& options) {
  const SegmentShape one{options.value_bytes, 1};
  const int64_t bytes =
      std::max(one.file_bytes(), std::min(options.segment_bytes, options.max_bytes / kMinSegments));
  return shape_for(options.value_bytes, bytes);
}

}  // namespace

struct SegmentStore::Impl {
  struct Staged {
    SlotHeader header;
    AlignedMemory slot;
  };

  SegmentStoreOptions options;
  SegmentShape shape;
  DirectoryLock lock;
  std::unique_ptr<FileIo> io;

  mutable std::mutex mutex;
  std::condition_variable changed;  // for the writer, and for flush()
  SegmentIndex index;
  SegmentStoreStats counters;
  std::deque<Staged> staged;
  std::unordered_set<StoreKey, HashStoreKey> under_way;  // keys staged or being written
  std::vector<AlignedMemory> spare;                      // slots
  std::shared_ptr<Segment> active;
  int64_t writing = 0;   // handed to the disk
  int64_t unsynced = 0;  // written since the last sync
  Clock::time_point last_sync{};
  Clock::time_point closed_until{};
  bool ending = false;
  std::thread writer;

  Status open();
  Status take(const std::string& path);
  void write_all();
  bool roll(std::unique_lock<std::mutex>& held);
  void evict_oldest(const std::shared_ptr<Segment>& oldest);
  FileOperation begin_write(Staged item);
  void written(const std::shared_ptr<Segment>& segment, int64_t slot, Staged& item,
               const Status& status);
  void sync(std::unique_lock<std::mutex>& held);
  void finish_active(std::unique_lock<std::mutex>& held);
  void drop(const Staged& item) {
    under_way.erase(item.header.key);
    ++counters.write_errors;
  }
  AlignedMemory take_slot_memory() {
    if (spare.empty()) return AlignedMemory(shape.slot_bytes());
    AlignedMemory memory = std::move(spare.back());
    spare.pop_back();
    return memory;
  }
  void give_back(AlignedMemory memory) {
    const auto most =
        static_cast<size_t>(options.max_staged_bytes / shape.slot_bytes() + options.max_reads);
    if (spare.size() < most) spare.push_back(std::move(memory));
  }
  int64_t staged_bytes() const {
    return (static_cast<int64_t>(staged.size()) + writing) * shape.slot_bytes();
  }
};

// --- opening ---------------------------------------------------------------------------------------------

Result<std::unique_ptr<SegmentStore>> SegmentStore::open(const SegmentStoreOptions& options) {
  CEDAR_CHECK_OK(check(options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->shape = shape_of(options);
  CEDAR_CHECK_OK(impl->open());
  return std::unique_ptr<SegmentStore>(new SegmentStore(std::move(impl)));
}

Status SegmentStore::Impl::open() {
  CEDAR_TRY(lock, DirectoryLock::take(options.directory));
  CEDAR_TRY(io, make_file_io(options.io, options.depth));
  for (const std::string& path : segment_paths(options.directory)) CEDAR_CHECK_OK(take(path));
  // The limit may be lower than it was.
  while (index.bytes() > options.max_bytes) evict_oldest(index.oldest_finished());
  // A restart must not cost a segment: the last one is filled first.
  if (const auto last = index.last(); last && !last->full()) {
    CEDAR_CHECK_OK(last->file->reopen());
    last->finished = false;
    active = last;
  }
  last_sync = Clock::now();
  writer = std::thread([this] { write_all(); });
  return {};
}

Status SegmentStore::Impl::take(const std::string& path) {
  auto file = SegmentFile::open(path, true);
  const bool foreign = file && ((*file)->header().identity != options.identity ||
                                (*file)->header().shape.value_bytes != options.value_bytes);
  if (!file && file.error().code == Errc::io_error) return file.error();
  if (!file || foreign) {
    log::info(
        "storage", "removes a segment that is of no use",
        {{"file", path}, {"why", file ? "of another model or layout" : file.error().context}});
    ++counters.foreign;
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    return {};
  }
  auto segment = std::make_shared<Segment>();
  segment->file = std::move(*file);
  CEDAR_TRY(auto contents, segment->file->read_headers());
  counters.torn += contents.torn;
  segment->slots = std::move(contents.slots);
  // A slot that the last life was writing when it was killed is either here or was never written; should it change after
  // all, its checksum or its key will not be those of the index.
  segment->next_slot = contents.used;
  segment->finished = true;
  index.add(std::move(segment));
  return {};
}

SegmentStore::SegmentStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

SegmentStore::~SegmentStore() {
  {
    std::lock_guard held(impl_->mutex);
    impl_->ending = true;
  }
  impl_->changed.notify_all();
  impl_->writer.join();
  impl_->io.reset();  // waits for reads
}

// --- reading ---------------------------------------------------------------------------------------------

int64_t SegmentStore::prefix(std::span<const StoreKey> keys) const {
  std::lock_guard held(impl_->mutex);
  const auto missing = std::find_if(keys.begin(), keys.end(), [this](const StoreKey& key) {
    return !impl_->index.contains(key);
  });
  return missing - keys.begin();
}

void SegmentStore::read(const StoreKey& key, std::span<std::byte> target,
                        std::function<void(Status)> done) {
  Impl& impl = *impl_;
  CEDAR_ASSERT(static_cast<int64_t>(target.size()) == impl.options.value_bytes,
               std::to_string(target.size()));
  std::unique_lock held(impl.mutex);
  const auto place = impl.index.find(key);
  if (!place) {
    ++impl.counters.missed;
    held.unlock();
    return done(make_error(Errc::not_found, "no such value"));
  }
  if (impl.counters.reads_under_way >= impl.options.max_reads) {
    held.unlock();
    return done(make_error(Errc::overloaded,
                           std::to_string(impl.options.max_reads) + " reads are under way"));
  }
  ++impl.counters.reads_under_way;
  auto memory = std::make_shared<AlignedMemory>(impl.take_slot_memory());
  held.unlock();

  const SegmentShape& shape = place->segment->shape();
  FileOperation operation;
  operation.fd = place->segment->file->fd();
  operation.data = memory->data();
  operation.bytes = shape.slot_bytes();
  operation.offset = shape.slot_offset(place->slot);
  operation.done = [&impl, place = *place, key, target, memory,
                    done = std::move(done)](Status status) {
    const Segment& segment = *place.segment;
    if (status) status = check_slot(memory->span(), segment.shape(), segment.number(), key);
    if (status) {
      std::copy_n(memory->data() + kSlotHeaderBytes, target.size(), target.data());
    }
    {
      std::lock_guard guard(impl.mutex);
      --impl.counters.reads_under_way;
      impl.give_back(std::move(*memory));
      if (status) {
        ++impl.counters.reads;
      } else if (status.error().code == Errc::checksum_mismatch) {
        ++impl.counters.corrupt;
        impl.index.forget(key, place);
      } else {
        ++impl.counters.read_errors;
      }
    }
    done(std::move(status));
  };
  impl.io->submit(std::move(operation));
}

// --- writing ---------------------------------------------------------------------------------------------

bool SegmentStore::write(const StoreKey& key, std::span<const std::byte> value) {
  Impl& impl = *impl_;
  CEDAR_ASSERT(static_cast<int64_t>(value.size()) == impl.options.value_bytes,
               std::to_string(value.size()));
  CEDAR_ASSERT(key != StoreKey{}, "the empty key means an empty slot");
  Impl::Staged item;
  {
    std::lock_guard held(impl.mutex);
    if (impl.index.contains(key) || impl.under_way.count(key) != 0) {
      ++impl.counters.known;
      return true;
    }
    const bool room =
        impl.staged_bytes() + impl.shape.slot_bytes() <= impl.options.max_staged_bytes;
    if (!room || Clock::now() < impl.closed_until) {
      ++impl.counters.dropped_no_room;
      return false;
    }
    impl.under_way.insert(key);
    item.slot = impl.take_slot_memory();
  }
  std::copy_n(value.data(), value.size(), item.slot.data() + kSlotHeaderBytes);
  item.header.key = key;
  item.header.written_s = unix_seconds();
  item.header.value_crc32c = crc32c(value);
  {
    std::lock_guard held(impl.mutex);
    impl.staged.push_back(std::move(item));
  }
  impl.changed.notify_all();
  return true;
}

void SegmentStore::Impl::write_all() {
  std::unique_lock held(mutex);
  for (;;) {
    const auto work = [this] { return !staged.empty() || ending; };
    changed.wait_for(held, options.sync_interval, work);
    if (unsynced > 0 && Clock::now() >= last_sync + options.sync_interval) sync(held);
    if (staged.empty()) {
      if (!ending) continue;
      finish_active(held);
      return;
    }
    if ((!active || active->full()) && !roll(held)) {
      for (const Staged& item : staged) drop(item);
      staged.clear();
      changed.notify_all();
      continue;
    }
    Staged item = std::move(staged.front());
    staged.pop_front();
    FileOperation operation = begin_write(std::move(item));
    held.unlock();
    io->submit(std::move(operation));
    held.lock();
  }
}

/// A new segment to write to. False: there can be none now.
bool SegmentStore::Impl::roll(std::unique_lock<std::mutex>& held) {
  finish_active(held);
  while (index.bytes() + shape.file_bytes() > options.max_bytes) {
    const auto oldest = index.oldest_finished();
    if (!oldest) break;
    evict_oldest(oldest);
  }
  SegmentHeader header;
  header.shape = shape;
  header.number = index.last_number() + 1;
  header.created_s = unix_seconds();
  header.identity = options.identity;
  held.unlock();
  auto file = SegmentFile::create(options.directory, header);
  held.lock();
  if (!file) {
    log::warn("storage", "cannot write for a while", {{"why", file.error().context}});
    closed_until = Clock::now() + options.retry_interval;
    return false;
  }
  active = std::make_shared<Segment>();
  active->file = std::move(*file);
  active->slots.resize(static_cast<size_t>(shape.slots));
  index.add(active);
  return true;
}

void SegmentStore::Impl::evict_oldest(const std::shared_ptr<Segment>& oldest) {
  const auto now = unix_seconds();
  for (const uint64_t written : index.remove(*oldest)) {
    ++counters.evicted;
    if (written + static_cast<uint64_t>(options.retention.count()) > now) {
      ++counters.evicted_young;
    }
  }
  oldest->file->remove();
}

FileOperation SegmentStore::Impl::begin_write(Staged item) {
  const std::shared_ptr<Segment> segment = active;
  const int64_t slot = segment->next_slot++;
  ++segment->writes_under_way;
  ++writing;
  item.header.segment = segment->number();
  encode(item.header, item.slot.span());
  FileOperation operation;
  operation.fd = segment->file->fd();
  operation.write = true;
  operation.data = item.slot.data();
  operation.bytes = shape.slot_bytes();
  operation.offset = segment->shape().slot_offset(slot);
  operation.done = [this, segment, slot, shared = std::make_shared<Staged>(std::move(item))](
                       const Status& status) { written(segment, slot, *shared, status); };
  return operation;
}

void SegmentStore::Impl::written(const std::shared_ptr<Segment>& segment, int64_t slot,
                                 Staged& item, const Status& status) {
  std::lock_guard held(mutex);
  --segment->writes_under_way;
  --writing;
  if (status) {
    ++counters.written;
    ++unsynced;
    under_way.erase(item.header.key);
    index.publish(*segment, slot, item.header);
  } else {
    drop(item);
  }
  give_back(std::move(item.slot));
  changed.notify_all();
}

/// Without the lock while the disk works.
void SegmentStore::Impl::sync(std::unique_lock<std::mutex>& held) {
  const std::shared_ptr<Segment> segment = active;
  unsynced = 0;
  last_sync = Clock::now();
  if (!segment) return;
  held.unlock();
  const Status synced = segment->file->sync();
  if (!synced) log::warn("storage", "cannot sync", {{"why", synced.error().context}});
  held.lock();
  changed.notify_all();
}

void SegmentStore::Impl::finish_active(std::unique_lock<std::mutex>& held) {
  const std::shared_ptr<Segment> segment = std::exchange(active, nullptr);
  if (!segment) return;
  changed.wait(held, [&] { return segment->writes_under_way == 0; });
  const std::vector<SlotHeader> slots = segment->slots;
  held.unlock();
  const Status finished = segment->file->finish(slots);
  if (!finished)
    log::warn("storage", "cannot finish a segment", {{"why", finished.error().context}});
  held.lock();
  unsynced = 0;
  segment->finished = true;
}

Status SegmentStore::flush(std::chrono::milliseconds timeout) {
  Impl& impl = *impl_;
  std::unique_lock held(impl.mutex);
  const bool idle = impl.changed.wait_for(held, timeout,
                                          [&] { return impl.staged.empty() && impl.writing == 0; });
  if (!idle) return make_error(Errc::deadline_exceeded, "the disk is too slow");
  const std::shared_ptr<Segment> segment = impl.active;
  held.unlock();
  return segment ? segment->file->sync() : Status{};
}

SegmentStoreStats SegmentStore::stats() const {
  std::lock_guard held(impl_->mutex);
  SegmentStoreStats stats = impl_->counters;
  stats.values = impl_->index.values();
  stats.segments = impl_->index.segments();
  stats.bytes = impl_->index.bytes();
  stats.staged_bytes = impl_->staged_bytes();
  return stats;
}

std::string_view SegmentStore::io_name() const { return impl_->io->name(); }

}  // namespace cedar::storage
