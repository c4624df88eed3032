#include "kernels/cuda/tensor_map.h"

#include <string>

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

namespace cedar::kernels::cuda {
namespace {

/// The driver is not linked: a program must start on machines without one.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

Result<CUtensorMap> tensor_map(const Bf16* base, int64_t rows, int64_t columns, int64_t stride,
                               int box_rows) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  if (encode == nullptr) {
    return make_error(Errc::unsupported, "this CUDA driver has no cuTensorMapEncodeTiled");
  }
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * sizeof(Bf16)};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<Bf16*>(base), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status == CUDA_SUCCESS) return map;
  return make_error(Errc::internal, "cuTensorMapEncodeTiled of [" + std::to_string(rows) + ", " +
                                        std::to_string(columns) + "], stride " +
                                        std::to_string(stride) + ": error " +
                                        std::to_string(static_cast<int>(status)));
}

}  // namespace cedar::kernels::cuda
