#include "core/recorded_launches.h"

#include "core/device_cuda.h"

namespace cedar {

void RecordedLaunches::Deleter::operator()(void* executable) const {
  cuda::destroy_graph(device, executable);
}

Status RecordedLaunches::begin(Device device, void* stream) {
  if (device.kind == DeviceKind::cpu) {
    return make_error(Errc::unsupported, "cpu: work is done at once, not queued");
  }
  return cuda::begin_recording(device, stream);
}

Result<RecordedLaunches> RecordedLaunches::end(Device device, void* stream) {
  CEDAR_TRY(const cuda::RecordedGraph graph, cuda::end_recording(device, stream));
  RecordedLaunches out;
  out.device_ = device;
  out.executable_ = std::unique_ptr<void, Deleter>(graph.executable, Deleter{device});
  out.kernels_ = graph.kernels;
  return out;
}

Status RecordedLaunches::replay(void* stream) const {
  return cuda::launch_graph(device_, executable_.get(), stream);
}

}  // namespace cedar
