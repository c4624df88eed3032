#include "core/buffer.h"

#include <new>
#include <string>

#include "core/device_cuda.h"
#include "core/device_memory.h"
#include "core/units.h"

namespace cedar {

void Buffer::Deleter::operator()(std::byte* p) const {
  if (device.kind == DeviceKind::cpu) {
    ::operator delete(p, std::align_val_t(kAlignment));
  } else {
    cuda::release(device, p);
  }
}

Result<Buffer> Buffer::allocate(Device device, int64_t bytes) {
  if (bytes < 0) {
    return make_error(Errc::invalid_argument, "buffer bytes: " + std::to_string(bytes));
  }
  Buffer buffer;
  std::byte* p = nullptr;
  if (device.kind != DeviceKind::cpu) {
    CEDAR_TRY(void* allocated, cuda::allocate(device, bytes));
    p = static_cast<std::byte*>(allocated);
  } else if (bytes <= INT64_MAX - kAlignment) {
    const auto padded = static_cast<size_t>(align_up(bytes > 0 ? bytes : 1, kAlignment));
    p = static_cast<std::byte*>(::operator new(padded, std::align_val_t(kAlignment), std::nothrow));
  }
  if (p == nullptr) {
    return make_error(Errc::out_of_memory, "cannot allocate " + std::to_string(bytes) +
                                               " bytes on " + to_string(device));
  }
  buffer.data_ = std::unique_ptr<std::byte, Deleter>(p, Deleter{device});
  buffer.bytes_ = bytes;
  buffer.device_ = device;
  return buffer;
}

Result<Buffer> Buffer::zeroed(Device device, int64_t bytes) {
  CEDAR_TRY(Buffer buffer, allocate(device, bytes));
  CEDAR_CHECK_OK(fill_zero(device, buffer.data(), bytes));
  CEDAR_CHECK_OK(synchronize(device));
  return buffer;
}

}  // namespace cedar
