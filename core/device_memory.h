#pragma once
// Bytes between host and devices, and the queues that order them. Every function takes a CPU device too (memcpy,
// memset, nothing to wait for), so callers need one path. `stream` is a Stream's handle; null is the device's
// default queue. Errors everywhere: unsupported for a device that this build or this machine lacks, internal with
// the driver's words for anything that fails on the device.

#include <cstdint>
#include <memory>

#include "core/device.h"
#include "core/result.h"

namespace cedar {

/// CUDA devices that programs can use here: 0 without the back end, a driver or a device.
int cuda_device_count();

/// Whether `device` can be used; the error says why not.
Status check_device(Device device);

struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};
/// Memory of the device now; for the CPU, what the kernel calls available.
Result<DeviceMemory> device_memory(Device device);

/// Host to device. Returns when `from` may be reused, or, for pinned memory, when the copy is queued.
Status copy_to_device(Device device, void* to, const void* from, int64_t bytes,
                      void* stream = nullptr);
/// Device to host. Returns when `to` holds the bytes, or, for pinned memory, when the copy is queued.
Status copy_to_host(Device device, void* to, const void* from, int64_t bytes,
                    void* stream = nullptr);
/// Queued. The ranges must not overlap.
Status copy_on_device(Device device, void* to, const void* from, int64_t bytes,
                      void* stream = nullptr);
/// Queued: zero bytes.
Status fill_zero(Device device, void* to, int64_t bytes, void* stream = nullptr);
/// Waits for everything queued so far.
Status synchronize(Device device, void* stream = nullptr);

/// Move-only owner of a queue of one device. Work in one stream is ordered, streams are independent of each other.
class Stream {
 public:
  /// For the CPU a stream whose handle is null.
  static Result<Stream> create(Device device);

  Device device() const { return device_; }
  void* handle() const { return handle_.get(); }
  Status wait() const { return synchronize(device_, handle()); }

 private:
  struct Deleter {
    Device device;
    void operator()(void* handle) const;
  };
  Device device_;
  std::unique_ptr<void, Deleter> handle_{nullptr, Deleter{}};
};

/// Move-only owner of host memory that `device` reads and writes without a staging copy; ordinary memory for the CPU.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// Uninitialised. Errors: out_of_memory naming the size.
  static Result<PinnedBuffer> allocate(Device device, int64_t bytes);

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

 private:
  struct Deleter {
    Device device;
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Deleter> data_{nullptr, Deleter{}};
  int64_t bytes_ = 0;
};

}  // namespace cedar
