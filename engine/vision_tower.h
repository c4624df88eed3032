#pragma once
// The vision transformer and its aligner (spec/model.md 12.2, 12.3): patches of one image to the
// rows that replace the embeddings of its span. Written over the operations of kernels/, like the
// text layers; attention is bidirectional inside the image, and one call reads one image.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/float_formats.h"
#include "engine/loaded_model.h"
#include "engine/prefill_engine.h"
#include "kernels/kernel_context.h"
#include "kernels/weights.h"
#include "model/checkpoint.h"
#include "model/image_processor.h"

namespace cedar::engine {

/// Immutable after create() and independent of the checkpoint: threads may share one, each with a
/// context of its own on the tower's device.
///
/// The context's arena holds the activations of a call, about 26 KB a patch for the release (240 MB
/// for the largest image), and has them back when the call returns.
class VisionTower {
 public:
  /// Packs the vision weights. A process that only reads images calls this on a checkpoint that was
  /// mapped with Role::all; nothing else of it is touched. Errors: unsupported when the checkpoint
  /// has no vision tensors (text-only model, or another role), out_of_memory.
  static Result<std::unique_ptr<VisionTower>> create(const model::Checkpoint& checkpoint,
                                                     kernels::KernelContext& ctx);

  /// The span of `image` as it stands in the prompt: START, per row the aligner's rows and NEWLINE,
  /// END. Errors: invalid_argument when patches, plan and configuration do not belong together.
  Result<ImageRows> read_image(kernels::KernelContext& ctx, const model::ProcessedImage& image,
                               Position position) const;

  // The two halves, one by one: what the stage tests feed with recorded inputs.

  /// Output of the final norm [patches.rows * patches.columns, width].
  Result<std::vector<Bf16>> run_vit(kernels::KernelContext& ctx,
                                    const model::ImagePatches& patches) const;
  /// `vit` [patch_rows * patch_columns, width] to image tokens [grid.rows * grid.columns, hidden],
  /// row-major.
  Result<std::vector<Bf16>> run_aligner(kernels::KernelContext& ctx, std::span<const Bf16> vit,
                                        int64_t patch_rows, int64_t patch_columns) const;

  const model::VisionConfig& config() const { return config_; }

 private:
  struct BlockWeights {
    DeviceTensor norm1, norm2, wqkv_bias, wo_bias;
    kernels::PackedWeight wqkv, wo, w1, w2;
  };
  struct Rotation {
    const float* cos = nullptr;  // [rows, head_dim / 2], device
    const float* sin = nullptr;
  };

  VisionTower() = default;
  Status load(const model::Checkpoint& checkpoint, kernels::KernelContext& ctx);
  Status check_patches(const model::ImagePatches& patches) const;
  Status norm(kernels::KernelContext& ctx, const DeviceTensor& weight, const Bf16* x, Bf16* y,
              int64_t rows) const;
  // out = x + sublayer(norm(x)), both [rows, width] and apart.
  Status attention(kernels::KernelContext& ctx, const BlockWeights& weights, Rotation rotation,
                   const Bf16* x, Bf16* out, int64_t rows) const;
  Status feed_forward(kernels::KernelContext& ctx, const BlockWeights& weights, const Bf16* x,
                      Bf16* out, int64_t rows) const;

  model::VisionConfig config_;
  int64_t hidden_size_ = 0;  // of the text model
  kernels::PackedWeight patch_embed_;
  DeviceTensor patch_bias_, final_norm_;
  std::vector<BlockWeights> blocks_;
  kernels::PackedWeight aligner_w1_, aligner_w2_;
  DeviceTensor aligner_b1_, aligner_b2_;
  std::vector<Bf16> image_start_, image_end_, image_newline_;  // [hidden], host
};

}  // namespace cedar::engine
