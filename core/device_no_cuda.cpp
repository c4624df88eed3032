#include <string>

#include "core/device_cuda.h"

namespace cedar::cuda {
namespace {

Error not_built(Device device) {
  return make_error(Errc::unsupported, to_string(device) + ": this build has no CUDA back end");
}

}  // namespace

int device_count() { return 0; }
Status use(Device device) { return not_built(device); }
Result<DeviceMemory> memory(Device device) { return not_built(device); }
Result<void*> allocate(Device device, int64_t) { return not_built(device); }
void release(Device, void*) {}
Result<void*> allocate_pinned(Device device, int64_t) { return not_built(device); }
void release_pinned(void*) {}
Status copy(Device device, Direction, void*, const void*, int64_t, void*) {
  return not_built(device);
}
Status zero(Device device, void*, int64_t, void*) { return not_built(device); }
Status synchronize(Device device, void*) { return not_built(device); }
Result<void*> create_stream(Device device) { return not_built(device); }
void destroy_stream(Device, void*) {}
Status begin_recording(Device device, void*) { return not_built(device); }
Result<RecordedGraph> end_recording(Device device, void*) { return not_built(device); }
Status launch_graph(Device device, void*, void*) { return not_built(device); }
void destroy_graph(Device, void*) {}

}  // namespace cedar::cuda
