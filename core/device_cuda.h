#pragma once
// What core asks of the CUDA runtime. Implemented by device_cuda.cpp, or by device_no_cuda.cpp in builds without
// the back end, where every function answers `unsupported`.

#include <cstdint>

#include "core/device.h"
#include "core/device_memory.h"
#include "core/result.h"

namespace cedar::cuda {

int device_count();
/// Makes `device` the calling thread's current one.
Status use(Device device);
Result<DeviceMemory> memory(Device device);
Result<void*> allocate(Device device, int64_t bytes);
void release(Device device, void* p);
Result<void*> allocate_pinned(Device device, int64_t bytes);
void release_pinned(void* p);
enum class Direction : uint8_t { to_device, to_host, on_device };
Status copy(Device device, Direction direction, void* to, const void* from, int64_t bytes,
            void* stream);
Status zero(Device device, void* to, int64_t bytes, void* stream);
Status synchronize(Device device, void* stream);
Result<void*> create_stream(Device device);
void destroy_stream(Device device, void* stream);
Status begin_recording(Device device, void* stream);
struct RecordedGraph {
  void* executable = nullptr;
  int64_t kernels = 0;
};
Result<RecordedGraph> end_recording(Device device, void* stream);
Status launch_graph(Device device, void* executable, void* stream);
void destroy_graph(Device device, void* executable);

}  // namespace cedar::cuda
