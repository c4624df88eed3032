#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <random>

#include "storage/segment_file.h"
#include "storage/segment_store.h"
#include "tests/support/temp_directory.h"

namespace cedar::storage::test {

using namespace std::chrono_literals;

inline StoreKey key_of(uint64_t number) {
  StoreKey key;
  std::mt19937_64 random(number + 1);
  for (uint8_t& byte : key.bytes) byte = static_cast<uint8_t>(random());
  return key;
}

/// Tells from the bytes alone which value it is.
inline std::vector<std::byte> value_of(uint64_t number, size_t bytes) {
  std::vector<std::byte> value(bytes);
  std::mt19937_64 random(number);
  for (std::byte& byte : value) byte = static_cast<std::byte>(random());
  return value;
}

/// What a read came to, and the bytes it left.
inline Result<std::vector<std::byte>> read(SegmentStore& store, uint64_t number, size_t bytes) {
  std::vector<std::byte> value(bytes);
  std::promise<Status> done;
  store.read(key_of(number), value, [&](Status status) { done.set_value(std::move(status)); });
  Status status = done.get_future().get();
  if (!status) return status.error();
  return value;
}

inline std::unique_ptr<SegmentStore> open(const SegmentStoreOptions& options) {
  auto store = SegmentStore::open(options);
  EXPECT_TRUE(store.has_value()) << store.error().message();
  return store ? std::move(*store) : nullptr;
}

inline int64_t bytes_on_disk(const std::string& directory) {
  int64_t bytes = 0;
  for (const std::string& path : segment_paths(directory)) {
    std::error_code gone;  // the store may have removed it
    const auto size = std::filesystem::file_size(path, gone);
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

}  // namespace cedar::storage::test
