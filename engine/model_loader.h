#pragma once
// Checkpoint views to packed weights, one tensor at a time, with progress. Towards a GPU a tensor goes from the mapped
// file through pinned memory, which its copy engine reads directly.

#include <span>

#include "core/device_memory.h"
#include "engine/loaded_model.h"

namespace cedar::engine {

class WeightLoader {
 public:
  WeightLoader(kernels::KernelContext& ctx, const model::ModelConfig& config, int64_t total_bytes,
               const LoadProgress& progress)
      : ctx_(ctx), config_(config), total_bytes_(total_bytes), progress_(progress) {}

  Result<DeviceTensor> copy(const TensorView& view);
  template <class T>
  Result<DeviceTensor> copy_values(std::span<const T> values) {
    return copy_bytes(std::as_bytes(values));
  }
  /// FP8 with a scale, FP4 (I8 with a scale), bf16 or f32.
  Result<kernels::PackedWeight> linear(const model::LinearTensors& tensors);
  Result<LayerWeights> layer(const model::LayerTensors& tensors);
  Result<DrafterWeights> drafter(const model::DrafterTensors& tensors);

 private:
  Result<DeviceTensor> copy_bytes(std::span<const std::byte> bytes);
  Result<HcLayerWeights> hc(const model::HcTensors& tensors);
  Result<kernels::ExpertWeights> expert(const model::ExpertTensors& tensors);
  Result<std::vector<kernels::PackedWeight>> output_groups(const model::LinearTensors& wo_a);
  Result<kernels::PackedWeight> pack(kernels::WeightView view);
  Status build_expert_table(LayerWeights& weights);
  /// The bytes in pinned memory at `offset`, or where they are: on the CPU, and of tensors larger than the buffer.
  const std::byte* stage(const void* from, int64_t bytes, int64_t offset);
  Status loaded(int64_t bytes);

  kernels::KernelContext& ctx_;
  const model::ModelConfig& config_;
  int64_t total_bytes_;
  int64_t done_bytes_ = 0;
  const LoadProgress& progress_;
  PinnedBuffer staging_;
};

}  // namespace cedar::engine
