#include "bench/kernels/cuda_measure.h"

namespace cedar::bench {
namespace {

Error not_built() { return make_error(Errc::unsupported, "this build has no CUDA back end"); }

}  // namespace

Result<std::string> cuda_device_name(Device) { return not_built(); }
Result<Timing> time_on_cuda(kernels::KernelContext&, double, const std::function<Status()>&) {
  return not_built();
}
Result<Ceilings> measure_cuda_ceilings(kernels::KernelContext&) { return not_built(); }
Result<std::function<Status()>> library_product(kernels::KernelContext&, const BfProduct&) {
  return not_built();
}

}  // namespace cedar::bench
