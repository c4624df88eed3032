#include "core/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "core/device_cuda.h"
#include "core/device_memory.h"
#include "core/units.h"

namespace cedar {

namespace {

/// Large buffers are asked for in huge pages: kernels read weights front to back, and with 4 KiB pages the
/// processor's prefetching stops, and an address translation waits, every 64 cache lines.
void* allocate_host(size_t bytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t alignment = bytes < kHugePage ? size_t{Buffer::kAlignment} : kHugePage;
  void* p = nullptr;
  if (posix_memalign(&p, alignment, bytes) != 0) return nullptr;
  // Only a wish, the pages work without it; and only for whole huge pages, so that the last one wastes nothing.
  if (bytes >= kHugePage) (void)madvise(p, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return p;
}

}  // namespace

void Buffer::Deleter::operator()(std::byte* p) const {
  if (owner) return;
  if (device.kind == DeviceKind::cpu) {
    std::free(p);
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
    p = static_cast<std::byte*>(allocate_host(padded));
  }
  if (p == nullptr) {
    return make_error(Errc::out_of_memory, "cannot allocate " + std::to_string(bytes) +
                                               " bytes on " + to_string(device));
  }
  buffer.data_ = std::unique_ptr<std::byte, Deleter>(p, Deleter{device, nullptr});
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

Buffer Buffer::adopt(std::byte* data, int64_t bytes, std::shared_ptr<void> owner) {
  Buffer buffer;
  buffer.data_ = std::unique_ptr<std::byte, Deleter>(data, Deleter{Device{}, std::move(owner)});
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace cedar
