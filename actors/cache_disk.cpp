#include "actors/cache_disk.h"

#include <utility>
#include <vector>

#include "core/log.h"

namespace cedar::actors {
namespace {

storage::StoreKey store_key(const model::BlockKey& key) {
  storage::StoreKey result;
  static_assert(sizeof result.bytes == sizeof key.digest);
  result.bytes = key.digest;
  return result;
}

}  // namespace

void CacheDisk::open() {
  const auto now = std::chrono::steady_clock::now();
  if (store_ || options_.directory.empty() || now < next_try_) return;
  next_try_ = now + options_.disk_retry;
  storage::SegmentStoreOptions store;
  store.directory = options_.directory;
  store.identity = options_.identity;
  store.value_bytes = block_bytes_;
  store.max_bytes = options_.disk_bytes;
  store.retention = options_.retention;
  auto opened = storage::SegmentStore::open(store);
  if (!opened) {
    if (failed_tries_++ > 0) return;
    log::warn("cache", "goes on without its disk", {{"error", opened.error().message()}});
    return;
  }
  store_ = std::move(*opened);
  const storage::SegmentStoreStats stats = store_->stats();
  log::info("cache", "has its disk",
            {{"directory", options_.directory},
             {"blocks", stats.values},
             {"bytes", stats.bytes},
             {"io", store_->io_name()}});
}

int64_t CacheDisk::prefix(std::span<const model::BlockKey> keys) const {
  if (!store_) return 0;
  std::vector<storage::StoreKey> wanted;
  wanted.reserve(keys.size());
  for (const model::BlockKey& key : keys) wanted.push_back(store_key(key));
  return store_->prefix(wanted);
}

void CacheDisk::write(const model::BlockKey& key, std::span<const std::byte> bytes) {
  if (store_ && key != model::BlockKey{}) store_->write(store_key(key), bytes);
}

void CacheDisk::read(const model::BlockKey& key, std::span<std::byte> target,
                     std::function<void(Status)> done) {
  if (!store_) return done(make_error(Errc::unavailable, "there is no disk"));
  store_->read(store_key(key), target, std::move(done));
}

void CacheDisk::count(CacheUsage& usage) const {
  usage.disk_errors = failed_tries_;
  if (!store_) return;
  const storage::SegmentStoreStats stats = store_->stats();
  usage.disk_blocks = stats.values;
  usage.disk_bytes = stats.bytes;
  usage.disk_capacity_bytes = options_.disk_bytes;
  usage.disk_written_blocks = stats.written;
  usage.disk_dropped_blocks = stats.dropped_no_room;
  usage.disk_errors += stats.corrupt + stats.read_errors + stats.write_errors;
}

}  // namespace cedar::actors
