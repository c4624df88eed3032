#pragma once
// Host values to the device that runs a step, and back. On the CPU the device's memory is the host's.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/device_memory.h"
#include "core/units.h"
#include "kernels/kernel_context.h"

namespace cedar::engine {

/// A copy in the step's arena, valid until the arena is reset. A device that refuses it is lost: fatal, as running
/// out of memory inside a step is.
template <class T>
T* upload(kernels::KernelContext& ctx, std::span<const T> values) {
  T* p = ctx.arena->allocate<T>(static_cast<int64_t>(values.size()));
  const Status copied = copy_to_device(ctx.device, p, values.data(),
                                       static_cast<int64_t>(values.size_bytes()), ctx.cuda_stream);
  CEDAR_ASSERT(copied.has_value(), copied ? std::string() : copied.error().message());
  return p;
}
template <class T>
T* upload(kernels::KernelContext& ctx, const std::vector<T>& values) {
  return upload(ctx, std::span<const T>(values));
}

/// Many small arrays in one copy: each costs a GPU as much as all of them together.
class UploadBatch {
 public:
  /// `*target` is set by send(), and must stay where it is until then.
  template <class T>
  void add(const std::vector<T>& values, const T** target) {
    const auto bytes = std::as_bytes(std::span<const T>(values));
    parts_.push_back({static_cast<int64_t>(bytes_.size()), target, [](void* to, std::byte* p) {
                        *static_cast<const T**>(to) = reinterpret_cast<const T*>(p);
                      }});
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    bytes_.resize(
        static_cast<size_t>(align_up(static_cast<int64_t>(bytes_.size()), Buffer::kAlignment)));
  }

  void send(kernels::KernelContext& ctx) {
    std::byte* base = upload(ctx, bytes_);
    for (const Part& part : parts_) part.set(part.target, base + part.offset);
    parts_.clear();
    bytes_.clear();
  }

 private:
  struct Part {
    int64_t offset;
    void* target;
    void (*set)(void* target, std::byte* p);
  };
  std::vector<std::byte> bytes_;
  std::vector<Part> parts_;
};

/// `count` values of the device as the host reads them: in place on the CPU, else a copy made once everything
/// queued before is done.
template <class T>
class HostValues {
 public:
  HostValues() = default;
  static Result<HostValues> read(kernels::KernelContext& ctx, const T* p, int64_t count) {
    HostValues out;
    out.in_place_ = p;
    if (ctx.device.kind == DeviceKind::cpu) return out;
    out.copy_.resize(static_cast<size_t>(count));
    CEDAR_CHECK_OK(copy_to_host(ctx.device, out.copy_.data(), p,
                                count * static_cast<int64_t>(sizeof(T)), ctx.cuda_stream));
    return out;
  }
  const T* data() const { return copy_.empty() ? in_place_ : copy_.data(); }
  const T& operator[](int64_t i) const { return data()[i]; }

 private:
  const T* in_place_ = nullptr;
  std::vector<T> copy_;
};

}  // namespace cedar::engine
