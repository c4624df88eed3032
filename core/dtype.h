#pragma once

#include <cstdint>
#include <string_view>

#include "core/result.h"

namespace cedar {

/// Element types as checkpoints name them. Packed FP4 is I8 in the files and `e2m1x2` here.
enum class DType : uint8_t { bf16, f32, e4m3, e8m0, e2m1x2, i8, u8, i32, i64, boolean };

/// Bytes of one stored element (one byte holds two e2m1 codes).
constexpr int64_t dtype_bytes(DType type) {
  switch (type) {
    case DType::bf16: return 2;
    case DType::f32:
    case DType::i32: return 4;
    case DType::i64: return 8;
    default: return 1;
  }
}

std::string_view to_string(DType type);

/// The safetensors header's spelling ("BF16", "F8_E4M3", "I8" ...).
Result<DType> dtype_from_safetensors(std::string_view name);

}  // namespace cedar
