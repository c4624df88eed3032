#pragma once
// A typed look at somebody else's bytes. Dense, row-major, owns nothing.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/dtype.h"

namespace cedar {

struct TensorView {
  const void* data = nullptr;
  DType dtype = DType::u8;
  std::vector<int64_t> shape;  // in elements; packed FP4 counts bytes in its last dimension

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    return n;
  }
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }
  bool empty() const { return data == nullptr; }

  /// REQUIRES: sizeof(T) == dtype_bytes(dtype).
  template <class T>
  std::span<const T> as() const {
    CEDAR_ASSERT(static_cast<int64_t>(sizeof(T)) == dtype_bytes(dtype), to_string(dtype));
    return {static_cast<const T*>(data), static_cast<size_t>(elements())};
  }
};

std::string shape_string(std::span<const int64_t> shape);  // "[512, 5120]"

}  // namespace cedar
