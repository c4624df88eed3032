#include "core/device_memory.h"

#include <cstring>
#include <new>
#include <string>

#include <unistd.h>

#include "core/buffer.h"
#include "core/device_cuda.h"

namespace cedar {
namespace {

bool on_cpu(Device device) { return device.kind == DeviceKind::cpu; }

Status move_bytes(Device device, cuda::Direction direction, void* to, const void* from,
                  int64_t bytes, void* stream) {
  if (bytes < 0) return make_error(Errc::invalid_argument, "copy bytes: " + std::to_string(bytes));
  if (bytes == 0) return {};
  if (!on_cpu(device)) return cuda::copy(device, direction, to, from, bytes, stream);
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return {};
}

}  // namespace

int cuda_device_count() { return cuda::device_count(); }

Status check_device(Device device) {
  if (on_cpu(device)) return {};
  return cuda::use(device);
}

Result<DeviceMemory> device_memory(Device device) {
  if (!on_cpu(device)) return cuda::memory(device);
  const int64_t page = sysconf(_SC_PAGESIZE);
  return DeviceMemory{sysconf(_SC_AVPHYS_PAGES) * page, sysconf(_SC_PHYS_PAGES) * page};
}

Status copy_to_device(Device device, void* to, const void* from, int64_t bytes, void* stream) {
  return move_bytes(device, cuda::Direction::to_device, to, from, bytes, stream);
}
Status copy_to_host(Device device, void* to, const void* from, int64_t bytes, void* stream) {
  return move_bytes(device, cuda::Direction::to_host, to, from, bytes, stream);
}
Status copy_on_device(Device device, void* to, const void* from, int64_t bytes, void* stream) {
  return move_bytes(device, cuda::Direction::on_device, to, from, bytes, stream);
}

Status fill_zero(Device device, void* to, int64_t bytes, void* stream) {
  if (bytes < 0) return make_error(Errc::invalid_argument, "fill bytes: " + std::to_string(bytes));
  if (bytes == 0) return {};
  if (!on_cpu(device)) return cuda::zero(device, to, bytes, stream);
  std::memset(to, 0, static_cast<size_t>(bytes));
  return {};
}

Status synchronize(Device device, void* stream) {
  if (on_cpu(device)) return {};
  return cuda::synchronize(device, stream);
}

void Stream::Deleter::operator()(void* handle) const { cuda::destroy_stream(device, handle); }

Result<Stream> Stream::create(Device device) {
  Stream stream;
  stream.device_ = device;
  if (!on_cpu(device)) {
    CEDAR_TRY(void* handle, cuda::create_stream(device));
    stream.handle_ = std::unique_ptr<void, Deleter>(handle, Deleter{device});
  }
  return stream;
}

void PinnedBuffer::Deleter::operator()(std::byte* p) const {
  if (on_cpu(device)) {
    ::operator delete(p, std::align_val_t(Buffer::kAlignment));
  } else {
    cuda::release_pinned(p);
  }
}

Result<PinnedBuffer> PinnedBuffer::allocate(Device device, int64_t bytes) {
  if (bytes < 0) {
    return make_error(Errc::invalid_argument, "pinned buffer bytes: " + std::to_string(bytes));
  }
  PinnedBuffer buffer;
  std::byte* p = nullptr;
  if (on_cpu(device)) {
    p = static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes > 0 ? bytes : 1),
                                               std::align_val_t(Buffer::kAlignment), std::nothrow));
    if (p == nullptr) {
      return make_error(Errc::out_of_memory,
                        "cannot allocate " + std::to_string(bytes) + " bytes of host memory");
    }
  } else {
    CEDAR_TRY(void* pinned, cuda::allocate_pinned(device, bytes));
    p = static_cast<std::byte*>(pinned);
  }
  buffer.data_ = std::unique_ptr<std::byte, Deleter>(p, Deleter{device});
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace cedar
