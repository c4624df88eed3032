#include "core/dtype.h"

#include <string>

namespace cedar {

std::string_view to_string(DType type) {
  switch (type) {
    case DType::bf16: return "BF16";
    case DType::f32: return "F32";
    case DType::e4m3: return "F8_E4M3";
    case DType::e8m0: return "F8_E8M0";
    case DType::e2m1x2: return "E2M1x2";
    case DType::i8: return "I8";
    case DType::u8: return "U8";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::boolean: return "BOOL";
  }
  return "?";
}

Result<DType> dtype_from_safetensors(std::string_view name) {
  for (DType type : {DType::bf16, DType::f32, DType::e4m3, DType::e8m0, DType::i8, DType::u8,
                     DType::i32, DType::i64, DType::boolean}) {
    if (to_string(type) == name) return type;
  }
  return make_error(Errc::invalid_checkpoint, "unknown dtype '" + std::string(name) + "'");
}

}  // namespace cedar
