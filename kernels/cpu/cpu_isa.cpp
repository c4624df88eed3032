#include "core/check.h"
#include "kernels/cpu/isa_kernels.h"
#include "kernels/kernel_context.h"

namespace cedar::kernels {

std::string_view to_string(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::portable: return "portable";
    case CpuIsa::avx2: return "avx2";
    case CpuIsa::avx512_bf16: return "avx512_bf16";
  }
  return "unknown";
}

bool cpu_supports(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::portable: return true;
    case CpuIsa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
    case CpuIsa::avx512_bf16:
      return cpu_supports(CpuIsa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni") &&
             __builtin_cpu_supports("avx512bf16");
  }
  return false;
}

CpuIsa best_cpu_isa() {
  if (cpu_supports(CpuIsa::avx512_bf16)) return CpuIsa::avx512_bf16;
  return cpu_supports(CpuIsa::avx2) ? CpuIsa::avx2 : CpuIsa::portable;
}

namespace cpu {

const IsaKernels& isa_kernels(CpuIsa isa) {
  CEDAR_ASSERT(cpu_supports(isa), to_string(isa));
  switch (isa) {
    case CpuIsa::avx512_bf16: return isa_kernels_avx512();
    case CpuIsa::avx2: return isa_kernels_avx2();
    case CpuIsa::portable: break;
  }
  return isa_kernels_portable();
}

}  // namespace cpu
}  // namespace cedar::kernels
