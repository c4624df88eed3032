#pragma once
// Host metadata of a step to the arena of the device that runs it. Valid until the arena is reset.

#include <cstring>
#include <span>
#include <vector>

#include "kernels/kernel_context.h"

namespace cedar::engine {

template <class T>
T* upload(kernels::KernelContext& ctx, std::span<const T> values) {
  T* p = ctx.arena->allocate<T>(static_cast<int64_t>(values.size()));
  if (!values.empty()) std::memcpy(p, values.data(), values.size_bytes());
  return p;
}
template <class T>
T* upload(kernels::KernelContext& ctx, const std::vector<T>& values) {
  return upload(ctx, std::span<const T>(values));
}

}  // namespace cedar::engine
