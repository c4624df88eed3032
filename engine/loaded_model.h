#pragma once
// A checkpoint's role turned into what a back end runs: packed weights, tables, plan and layout. Immutable
// after load; shared by every engine of the process.

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/buffer.h"
#include "kernels/hyper_connection.h"
#include "kernels/moe.h"
#include "kernels/weights.h"
#include "model/checkpoint.h"
#include "model/engram_layout.h"
#include "model/kv_layout.h"

namespace cedar::engine {

/// A small parameter vector or table on the engine's device.
struct DeviceTensor {
  Buffer buffer;
  template <class T>
  const T* as() const {
    return buffer.as<T>();
  }
};

struct HcLayerWeights {
  DeviceTensor fn, base, scale;
  kernels::HcWeights view() const { return {fn.as<float>(), base.as<float>(), scale.as<float>()}; }
};

struct CompressorWeights {
  kernels::PackedWeight wkv;                   // bf16 [head_dim, hidden]
  std::optional<kernels::PackedWeight> wgate;  // ratio > 1
  DeviceTensor norm;
};

struct IndexKeyWeights {
  kernels::PackedWeight wk;  // bf16 [index_head_dim, head_dim]
  DeviceTensor norm;
};

struct IndexQueryWeights {
  kernels::PackedWeight wq_b;          // FP8 [index heads * index_head_dim, q rank]
  kernels::PackedWeight weights_proj;  // bf16 [index heads, hidden]
};

struct EngramWeights {
  kernels::PackedWeight wkv;  // FP8 [(copies + 1) * hidden, columns * dim]
  DeviceTensor q_weight, k_weight;
};

/// Everything one layer needs to run. `boundary_only` layers (encoder role) hold attn_norm, compressor and
/// index_key alone.
struct LayerWeights {
  bool boundary_only = false;
  DeviceTensor attn_norm, ffn_norm, q_norm, kv_norm, sink;
  kernels::PackedWeight wq_a, wq_b, wkv, wo_b;
  // Decoded to bf16. One per output group, or, where a GPU can, all of them as one block-diagonal weight.
  std::vector<kernels::PackedWeight> wo_a;
  HcLayerWeights hc_attn, hc_ffn;
  kernels::PackedWeight gate;
  DeviceTensor gate_bias, gate_bias_image;
  kernels::ExpertWeights shared;
  std::vector<kernels::ExpertWeights> experts;
  kernels::ExpertTable expert_table;  // of both, for a GPU; empty on the CPU
  std::optional<CompressorWeights> compressor;
  std::optional<IndexKeyWeights> index_key;
  std::optional<IndexQueryWeights> index_query;
  std::optional<EngramWeights> engram;
};

struct DrafterWeights {
  std::vector<LayerWeights> stages;
  kernels::PackedWeight main_proj;  // FP8 [hidden, targets * hidden]
  DeviceTensor main_norm, norm;
  DeviceTensor markov_embed;          // bf16 [vocab, rank]
  kernels::PackedWeight markov_head;  // bf16 [vocab, rank]
  kernels::PackedWeight confidence;   // bf16 [1, hidden + rank]
};

struct LoadedModel {
  model::ModelConfig config;
  model::ModelPlan plan;
  model::KvLayout layout;
  model::Role role = model::Role::all;
  model::LayerRange range;  // of the layers below, those that can run
  Device device;
  DeviceTensor embed;                         // bf16 [vocab, hidden]
  std::optional<kernels::PackedWeight> head;  // bf16 [vocab, hidden]; absent in the encoder role
  DeviceTensor final_norm;
  std::vector<std::unique_ptr<LayerWeights>> layers;  // null: not in this role
  std::optional<DrafterWeights> drafter;
  DeviceTensor inv_freq_window;      // ratio-0 layers and the drafter
  DeviceTensor inv_freq_compressed;  // all other layers
  model::EngramLayout engram;
  model::TokenCompression compression;  // empty when the model has no Engram layers
  model::Checkpoint checkpoint;         // keeps the mapped files and the Engram tables alive

  /// Whether `token` marks a position of an image span. Text-only checkpoints have none.
  bool is_image(TokenId token) const {
    return config.vision.has_value() && config.image_token_id == token;
  }
};

/// Called while loading with (bytes done, bytes in all), a tensor at a time; false stops the load.
using LoadProgress = std::function<bool(int64_t done, int64_t total)>;

/// `part` as load_checkpoint() has it. Errors: those of load_checkpoint, out_of_memory naming need and what is free, unsupported device; cancelled when
/// `progress` said so.
Result<std::shared_ptr<const LoadedModel>> load_model(const std::string& directory,
                                                      model::Role role, kernels::KernelContext& ctx,
                                                      const LoadProgress& progress = {},
                                                      std::optional<model::LayerRange> part = {});

}  // namespace cedar::engine
