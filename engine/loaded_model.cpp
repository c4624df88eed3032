#include "engine/loaded_model.h"

#include <cstring>
#include <string>

#include "core/device_memory.h"
#include "engine/model_loader.h"
#include "kernels/rope.h"
#include "model/tokenizer.h"

namespace cedar::engine {
namespace {

/// Refuses a device that cannot hold the weights before minutes are spent on filling it.
Status check_memory(Device device, const std::string& directory, const model::Checkpoint& tensors) {
  if (device.kind == DeviceKind::cpu) return {};  // mapped files and swap make a forecast a guess
  int64_t needed = tensors.bytes - tensors.engram_table_bytes;
  for (const std::optional<model::LayerTensors>& layer : tensors.layers) {
    // Kept as bf16, twice as many bytes as the file has.
    if (layer && !layer->wo_a.weight.empty()) needed += layer->wo_a.weight.bytes();
  }
  CEDAR_TRY(const DeviceMemory memory, device_memory(device));
  if (needed <= memory.free_bytes) return {};
  return make_error(Errc::out_of_memory,
                    directory + ": the weights need " + std::to_string(needed) + " bytes on " +
                        to_string(device) + ", where " + std::to_string(memory.free_bytes) +
                        " of " + std::to_string(memory.total_bytes) + " are free");
}

/// What VisionTower loads, when an engine needs it.
int64_t vision_bytes(const model::Checkpoint& checkpoint) {
  if (!checkpoint.vision) return 0;
  const model::VisionTensors& v = *checkpoint.vision;
  int64_t bytes = 0;
  const auto add = [&bytes](std::initializer_list<const TensorView*> tensors) {
    for (const TensorView* tensor : tensors) bytes += tensor->bytes();
  };
  add({&v.patch_weight, &v.patch_bias, &v.norm, &v.aligner_w1, &v.aligner_b1, &v.aligner_w2,
       &v.aligner_b2, &v.image_start, &v.image_end, &v.image_newline});
  for (const model::VisionBlockTensors& b : v.blocks) {
    add({&b.norm1, &b.norm2, &b.wqkv, &b.wqkv_bias, &b.wo, &b.wo_bias, &b.w1, &b.w2});
  }
  return bytes;
}

}  // namespace

Result<std::shared_ptr<const LoadedModel>> load_model(const std::string& directory,
                                                      model::Role role, kernels::KernelContext& ctx,
                                                      const LoadProgress& progress,
                                                      std::optional<model::LayerRange> part) {
  CEDAR_CHECK_OK(check_device(ctx.device));
  auto loaded = std::make_shared<LoadedModel>();
  CEDAR_TRY(loaded->checkpoint, model::load_checkpoint(directory, role, part));
  model::Checkpoint& checkpoint = loaded->checkpoint;
  loaded->config = checkpoint.config;
  loaded->plan = checkpoint.plan;
  loaded->layout = model::make_kv_layout(loaded->config, loaded->plan);
  loaded->role = role;
  loaded->range = checkpoint.range;
  loaded->device = ctx.device;
  const model::ModelConfig& config = loaded->config;
  CEDAR_CHECK_OK(check_memory(ctx.device, directory, checkpoint));

  WeightLoader loader(ctx, config,
                      checkpoint.bytes - checkpoint.engram_table_bytes - vision_bytes(checkpoint),
                      progress);
  CEDAR_TRY(loaded->embed, loader.copy(checkpoint.embed));
  if (!checkpoint.head.empty()) {
    CEDAR_TRY(loaded->head, loader.linear({checkpoint.head, {}}));
    CEDAR_TRY(loaded->final_norm, loader.copy(checkpoint.norm));
  }
  for (const std::optional<model::LayerTensors>& tensors : checkpoint.layers) {
    if (!tensors) {
      loaded->layers.push_back(nullptr);
      continue;
    }
    CEDAR_TRY(LayerWeights weights, loader.layer(*tensors));
    loaded->layers.push_back(std::make_unique<LayerWeights>(std::move(weights)));
  }
  if (checkpoint.drafter) {
    CEDAR_TRY(loaded->drafter, loader.drafter(*checkpoint.drafter));
  }

  const auto frequencies = [&](double theta, const kernels::YarnScaling& yarn) {
    return loader.copy_values<float>(
        kernels::rope_inverse_frequencies(config.qk_rope_head_dim, theta, yarn));
  };
  CEDAR_TRY(loaded->inv_freq_window, frequencies(config.rope_theta, {}));
  kernels::YarnScaling yarn;
  yarn.factor = config.rope_scaling.factor;
  yarn.beta_fast = config.rope_scaling.beta_fast;
  yarn.beta_slow = config.rope_scaling.beta_slow;
  yarn.original_length = config.rope_scaling.original_max_position_embeddings;
  CEDAR_TRY(loaded->inv_freq_compressed, frequencies(config.compress_rope_theta, yarn));

  if (!config.engram_layer_ids.empty()) {
    CEDAR_TRY(loaded->engram, model::make_engram_layout(config));
    CEDAR_TRY(const std::shared_ptr<const model::Tokenizer> tokenizer,
              model::Tokenizer::load(directory + "/tokenizer.json"));
    CEDAR_TRY(loaded->compression, model::make_token_compression(*tokenizer, config));
  }
  // Engines run in streams of their own, which would not wait for copies that are still under way.
  CEDAR_CHECK_OK(synchronize(ctx.device, ctx.cuda_stream));
  return std::shared_ptr<const LoadedModel>(std::move(loaded));
}

}  // namespace cedar::engine
