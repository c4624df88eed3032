#pragma once
// Launches of one stream, recorded once and replayed as a whole: a GPU starts them without the host's help.

#include <cstdint>
#include <memory>

#include "core/device.h"
#include "core/result.h"

namespace cedar {

/// Move-only. A replay reads and writes the addresses of the recording.
class RecordedLaunches {
 public:
  /// From now on what is queued in `stream` is recorded, not run; copies from or to ordinary host memory must not be
  /// among it. Errors: unsupported for the CPU.
  static Status begin(Device device, void* stream);
  /// Ends the recording, also one that failed. Errors: internal.
  static Result<RecordedLaunches> end(Device device, void* stream);

  /// Queued.
  Status replay(void* stream) const;
  /// Kernels of the recording, as the driver counts them.
  int64_t kernels() const { return kernels_; }

 private:
  struct Deleter {
    Device device;
    void operator()(void* executable) const;
  };
  Device device_;
  std::unique_ptr<void, Deleter> executable_{nullptr, Deleter{}};
  int64_t kernels_ = 0;
};

}  // namespace cedar
