#pragma once
// Move-only owner of bytes on one device.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/device.h"
#include "core/result.h"

namespace cedar {

class Buffer {
 public:
  static constexpr int64_t kAlignment = 64;

  Buffer() = default;
  /// The moved-from buffer owns nothing and reports 0 bytes.
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)),
        bytes_(std::exchange(other.bytes_, 0)),
        device_(other.device_) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    bytes_ = std::exchange(other.bytes_, 0);
    device_ = other.device_;
    return *this;
  }

  /// Uninitialised, 64-byte aligned. Errors: out_of_memory naming the size and, on a GPU, what is free;
  /// unsupported for a device that this build or this machine lacks. CUDA memory cannot be read by the host:
  /// core/device_memory.h copies.
  static Result<Buffer> allocate(Device device, int64_t bytes);
  /// The same, filled with zero bytes.
  static Result<Buffer> zeroed(Device device, int64_t bytes);
  /// Host memory that `owner` keeps alive; the buffer holds it.
  static Buffer adopt(std::byte* data, int64_t bytes, std::shared_ptr<void> owner);

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  struct Deleter {
    Device device;
    std::shared_ptr<void> owner;  // of memory that is not ours to free
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Deleter> data_{nullptr, Deleter{}};
  int64_t bytes_ = 0;
  Device device_;
};

}  // namespace cedar
