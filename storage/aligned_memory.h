#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "core/check.h"
#include "storage/file_io.h"

namespace cedar::storage {

/// Memory that files opened past the page cache can be read into. Zeroed.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  /// REQUIRES: bytes is a multiple of kFileAlignment.
  explicit AlignedMemory(int64_t bytes)
      : data_(static_cast<std::byte*>(
            std::aligned_alloc(static_cast<size_t>(kFileAlignment), static_cast<size_t>(bytes)))),
        bytes_(bytes) {
    CEDAR_ASSERT(data_ != nullptr, "no memory for " + std::to_string(bytes) + " bytes");
    std::fill_n(data_.get(), bytes, std::byte{0});
  }

  std::byte* data() { return data_.get(); }
  std::span<std::byte> span() { return {data_.get(), static_cast<size_t>(bytes_)}; }
  std::span<const std::byte> span() const { return {data_.get(), static_cast<size_t>(bytes_)}; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace cedar::storage
