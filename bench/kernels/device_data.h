#pragma once
// An array of a case: host values for the verification, and a copy where the operation reads and writes.

#include <cstdint>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/device_memory.h"

namespace cedar::bench {

template <class T>
class DeviceData {
 public:
  /// Empty until assigned from make().
  DeviceData() = default;

  static Result<DeviceData> make(Device device, std::vector<T> values) {
    DeviceData data;
    data.host_ = std::move(values);
    const auto bytes = static_cast<int64_t>(data.host_.size() * sizeof(T));
    CEDAR_TRY(data.buffer_, Buffer::allocate(device, bytes));
    CEDAR_CHECK_OK(copy_to_device(device, data.buffer_.data(), data.host_.data(), bytes));
    CEDAR_CHECK_OK(synchronize(device));  // the operations' stream does not wait for this one
    return data;
  }
  static Result<DeviceData> make(Device device, int64_t count, T value = T{}) {
    return make(device, std::vector<T>(static_cast<size_t>(count), value));
  }

  T* data() { return buffer_.as<T>(); }
  const T* data() const { return buffer_.as<T>(); }
  size_t size() const { return host_.size(); }
  /// What make() was given.
  const std::vector<T>& given() const { return host_; }
  /// What the operation left. REQUIRES: nothing is queued that writes it.
  std::vector<T> written() const {
    std::vector<T> values(host_.size());
    const Status copied = copy_to_host(buffer_.device(), values.data(), data(),
                                       static_cast<int64_t>(values.size() * sizeof(T)));
    CEDAR_ASSERT(copied.has_value(), copied ? std::string() : copied.error().message());
    return values;
  }

 private:
  std::vector<T> host_;
  Buffer buffer_;
};

}  // namespace cedar::bench
