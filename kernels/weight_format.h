#pragma once

#include <cstdint>

namespace cedar::kernels {

/// How a checkpoint stores a linear layer's weight [out, in].
enum class WeightFormat : uint8_t {
  bf16,         // Bf16 [out, in]
  f32,          // float [out, in]
  fp8_block32,  // E4M3 [out, in], E8M0 scales [ceil(out/32), ceil(in/32)]
  fp4_group32,  // packed E2M1 [out, in/2] (even index low), E8M0 scales [out, in/32]
};

}  // namespace cedar::kernels
