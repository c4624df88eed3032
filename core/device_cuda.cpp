#include "core/device_cuda.h"

#include <string>
#include <vector>

#include <cuda_runtime_api.h>

namespace cedar::cuda {
namespace {

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

Error failed(Device device, const char* action, cudaError_t status) {
  // Sticky errors stay; others must not be found by the next call that asks for the last error.
  (void)cudaGetLastError();
  return make_error(Errc::internal,
                    to_string(device) + ": " + action + ": " + cudaGetErrorString(status));
}

Status checked(Device device, const char* action, cudaError_t status) {
  if (status != cudaSuccess) return failed(device, action, status);
  return {};
}

}  // namespace

int device_count() {
  // No driver, an old driver and no device all mean: none.
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return count;
}

Status use(Device device) {
  const cudaError_t status = cudaSetDevice(device.ordinal);
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  return make_error(Errc::unsupported, to_string(device) + ": " + cudaGetErrorString(status));
}

Result<DeviceMemory> memory(Device device) {
  CEDAR_CHECK_OK(use(device));
  size_t free_bytes = 0, total_bytes = 0;
  if (const cudaError_t status = cudaMemGetInfo(&free_bytes, &total_bytes); status != cudaSuccess) {
    return failed(device, "memory size", status);
  }
  return DeviceMemory{static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

Result<void*> allocate(Device device, int64_t bytes) {
  CEDAR_CHECK_OK(use(device));
  void* p = nullptr;
  const cudaError_t status = cudaMalloc(&p, static_cast<size_t>(bytes > 0 ? bytes : 1));
  if (status == cudaSuccess) return p;
  if (status != cudaErrorMemoryAllocation) return failed(device, "allocation", status);
  (void)cudaGetLastError();
  const auto now = memory(device);
  std::string context =
      "cannot allocate " + std::to_string(bytes) + " bytes on " + to_string(device);
  if (now.has_value()) {
    context += ": " + std::to_string(now->free_bytes) + " of " + std::to_string(now->total_bytes) +
               " are free";
  }
  return make_error(Errc::out_of_memory, std::move(context));
}

void release(Device device, void* p) {
  // A process that is ending may have lost its context already; the memory is gone with it.
  if (p != nullptr && cudaSetDevice(device.ordinal) == cudaSuccess) (void)cudaFree(p);
}

Result<void*> allocate_pinned(Device device, int64_t bytes) {
  CEDAR_CHECK_OK(use(device));
  void* p = nullptr;
  const cudaError_t status =
      cudaHostAlloc(&p, static_cast<size_t>(bytes > 0 ? bytes : 1), cudaHostAllocPortable);
  if (status == cudaSuccess) return p;
  (void)cudaGetLastError();
  return make_error(Errc::out_of_memory, "cannot pin " + std::to_string(bytes) +
                                             " bytes of host memory for " + to_string(device) +
                                             ": " + cudaGetErrorString(status));
}

void release_pinned(void* p) {
  if (p != nullptr) (void)cudaFreeHost(p);
}

Status copy(Device device, Direction direction, void* to, const void* from, int64_t bytes,
            void* stream) {
  CEDAR_CHECK_OK(use(device));
  const cudaMemcpyKind kind = direction == Direction::to_device ? cudaMemcpyHostToDevice
                              : direction == Direction::to_host ? cudaMemcpyDeviceToHost
                                                                : cudaMemcpyDeviceToDevice;
  return checked(device, "copy",
                 cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, as_stream(stream)));
}

Status zero(Device device, void* to, int64_t bytes, void* stream) {
  CEDAR_CHECK_OK(use(device));
  return checked(device, "fill",
                 cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), as_stream(stream)));
}

Status synchronize(Device device, void* stream) {
  CEDAR_CHECK_OK(use(device));
  return checked(device, "wait", cudaStreamSynchronize(as_stream(stream)));
}

Result<void*> create_stream(Device device) {
  CEDAR_CHECK_OK(use(device));
  cudaStream_t stream = nullptr;
  // Non-blocking: work in the default stream (loading, tests) does not wait for steps, nor they for it.
  if (const cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
      status != cudaSuccess) {
    return failed(device, "stream", status);
  }
  return static_cast<void*>(stream);
}

void destroy_stream(Device device, void* stream) {
  if (stream != nullptr && cudaSetDevice(device.ordinal) == cudaSuccess) {
    (void)cudaStreamDestroy(as_stream(stream));
  }
}

Status begin_recording(Device device, void* stream) {
  CEDAR_CHECK_OK(use(device));
  // Relaxed: other threads, and this one's workspace, may go on allocating.
  return checked(device, "recording",
                 cudaStreamBeginCapture(as_stream(stream), cudaStreamCaptureModeRelaxed));
}

Result<RecordedGraph> end_recording(Device device, void* stream) {
  CEDAR_CHECK_OK(use(device));
  cudaGraph_t graph = nullptr;
  cudaError_t status = cudaStreamEndCapture(as_stream(stream), &graph);
  if (status != cudaSuccess) return failed(device, "recording", status);
  size_t count = 0;
  RecordedGraph out;
  status = cudaGraphGetNodes(graph, nullptr, &count);
  std::vector<cudaGraphNode_t> nodes(count);
  if (status == cudaSuccess && count > 0) status = cudaGraphGetNodes(graph, nodes.data(), &count);
  for (const cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    if (status == cudaSuccess) status = cudaGraphNodeGetType(node, &type);
    out.kernels += type == cudaGraphNodeTypeKernel ? 1 : 0;
  }
  cudaGraphExec_t executable = nullptr;
  if (status == cudaSuccess) status = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  if (status != cudaSuccess) return failed(device, "recording", status);
  out.executable = executable;
  return out;
}

Status launch_graph(Device device, void* executable, void* stream) {
  CEDAR_CHECK_OK(use(device));
  return checked(device, "replay",
                 cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable), as_stream(stream)));
}

void destroy_graph(Device device, void* executable) {
  if (executable != nullptr && cudaSetDevice(device.ordinal) == cudaSuccess) {
    (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable));
  }
}

}  // namespace cedar::cuda
