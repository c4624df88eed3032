#include "bench/kernels/cuda_measure.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include <cuda_runtime_api.h>

#include "bench/kernels/bench_data.h"
#include "bench/kernels/copy_kernel.h"
#include "bench/kernels/cublas_lt.h"
#include "bench/kernels/device_data.h"
#include "core/units.h"

namespace cedar::bench {
namespace {

Status checked(cudaError_t status) {
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();
  return make_error(Errc::internal, cudaGetErrorString(status));
}

struct EventDeleter {
  void operator()(cudaEvent_t event) const { (void)cudaEventDestroy(event); }
};
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter>;
Event make_event() {
  cudaEvent_t event = nullptr;
  (void)cudaEventCreate(&event);
  return Event(event);
}

struct GraphDeleter {
  void operator()(cudaGraphExec_t graph) const { (void)cudaGraphExecDestroy(graph); }
};
using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphDeleter>;

/// `calls` calls of `run` as a graph; null where they cannot be captured.
Graph capture(cudaStream_t stream, int calls, const std::function<Status()>& run) {
  if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return {};
  bool good = true;
  for (int i = 0; i < calls && good; ++i) good = run().has_value();
  cudaGraph_t graph = nullptr;
  good = cudaStreamEndCapture(stream, &graph) == cudaSuccess && good;
  cudaGraphExec_t exec = nullptr;
  if (good && cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) exec = nullptr;
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  (void)cudaGetLastError();
  return Graph(exec);
}

}  // namespace

Result<std::string> cuda_device_name(Device device) {
  cudaDeviceProp properties{};
  CEDAR_CHECK_OK(checked(cudaGetDeviceProperties(&properties, device.ordinal)));
  return std::string(properties.name);
}

Result<Timing> time_on_cuda(kernels::KernelContext& ctx, double min_s,
                            const std::function<Status()>& run) {
  const auto stream = static_cast<cudaStream_t>(ctx.cuda_stream);
  const Event begin = make_event(), end = make_event();
  const auto sample = [&](const std::function<Status()>& work) -> Result<double> {
    CEDAR_CHECK_OK(checked(cudaEventRecord(begin.get(), stream)));
    CEDAR_CHECK_OK(work());
    CEDAR_CHECK_OK(checked(cudaEventRecord(end.get(), stream)));
    CEDAR_CHECK_OK(checked(cudaEventSynchronize(end.get())));
    float ms = 0;
    CEDAR_CHECK_OK(checked(cudaEventElapsedTime(&ms, begin.get(), end.get())));
    return static_cast<double>(ms) * 1e-3;
  };

  for (int i = 0; i < 3; ++i) CEDAR_CHECK_OK(run());
  CEDAR_TRY(const double once, sample(run));
  const int calls = static_cast<int>(std::clamp(1.5e-3 / once, 1.0, 200.0));
  const Graph graph = capture(stream, calls, run);
  const std::function<Status()> work = [&]() -> Status {
    if (graph != nullptr) return checked(cudaGraphLaunch(graph.get(), stream));
    for (int i = 0; i < calls; ++i) CEDAR_CHECK_OK(run());
    return {};
  };

  for (int i = 0; i < 2; ++i) CEDAR_CHECK_OK(work());
  std::vector<double> samples;
  double total = 0;
  while (samples.size() < 7 || total < min_s) {
    CEDAR_TRY(const double seconds, sample(work));
    total += seconds;
    samples.push_back(seconds / calls);
  }
  std::sort(samples.begin(), samples.end());
  return Timing{samples.front(), samples[samples.size() / 2], static_cast<int>(samples.size())};
}

Result<std::function<Status()>> library_product(kernels::KernelContext& ctx, const BfProduct& p) {
  if (!have_cublas_lt()) return make_error(Errc::unsupported, "libcublasLt.so.13 is missing");
  CEDAR_TRY(Buffer allocated, Buffer::allocate(ctx.device, kProductWorkspace));
  const auto workspace = std::make_shared<Buffer>(std::move(allocated));
  return std::function<Status()>([p, workspace, stream = ctx.cuda_stream] {
    return multiply_with_cublas_lt(p, workspace->data(), stream);
  });
}

Result<Ceilings> measure_cuda_ceilings(kernels::KernelContext& ctx) {
  constexpr double kSeconds = 0.1;
  Ceilings ceilings;
  {
    constexpr int64_t kBytes = 2_GiB;
    const auto stream = static_cast<cudaStream_t>(ctx.cuda_stream);
    CEDAR_TRY(Buffer from, Buffer::allocate(ctx.device, kBytes));
    CEDAR_TRY(Buffer to, Buffer::allocate(ctx.device, kBytes));
    queue_fill(from.data(), kBytes, stream);
    // Whichever is faster: a kernel's loads and stores, or the driver's copy.
    CEDAR_TRY(const Timing by_kernel, time_on_cuda(ctx, kSeconds, [&]() -> Status {
                queue_copy(to.data(), from.data(), kBytes, stream);
                return checked(cudaGetLastError());
              }));
    CEDAR_TRY(const Timing by_driver, time_on_cuda(ctx, kSeconds, [&] {
                return checked(cudaMemcpyAsync(to.data(), from.data(), kBytes,
                                               cudaMemcpyDeviceToDevice, stream));
              }));
    ceilings.copy_bytes_per_s =
        2.0 * static_cast<double>(kBytes) / std::min(by_kernel.median_s, by_driver.median_s);
    ceilings.read_bytes_per_s = ceilings.copy_bytes_per_s;
  }
  constexpr int64_t kSize = 8192;
  CEDAR_TRY(auto a, DeviceData<Bf16>::make(ctx.device, random_bf16(kSize * kSize, 1)));
  CEDAR_TRY(auto b, DeviceData<Bf16>::make(ctx.device, random_bf16(kSize * kSize, 2)));
  CEDAR_TRY(auto c, DeviceData<Bf16>::make(ctx.device, kSize * kSize));
  const auto product = library_product(ctx, {a.data(), b.data(), c.data(), kSize, kSize, kSize});
  if (product) {
    CEDAR_TRY(const Timing timing, time_on_cuda(ctx, kSeconds, *product));
    ceilings.bf16_flop_per_s = 2.0 * kSize * kSize * kSize / timing.median_s;
  }
  return ceilings;
}

}  // namespace cedar::bench
