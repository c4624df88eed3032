#include "engine/model_loader.h"

#include <string>

#include "core/device_memory.h"

namespace cedar::engine {
namespace {

kernels::WeightView weight_view(const model::LinearTensors& tensors) {
  kernels::WeightView view;
  view.out = tensors.weight.shape.at(0);
  view.in = tensors.weight.shape.at(1);
  view.data = tensors.weight.data;
  view.scales = static_cast<const uint8_t*>(tensors.scale.data);
  switch (tensors.weight.dtype) {
    case DType::e4m3: view.format = kernels::WeightFormat::fp8_block32; break;
    case DType::e2m1x2:
      view.format = kernels::WeightFormat::fp4_group32;
      view.in *= 2;
      break;
    case DType::f32: view.format = kernels::WeightFormat::f32; break;
    default: view.format = kernels::WeightFormat::bf16; break;
  }
  return view;
}

}  // namespace

Status WeightLoader::loaded(int64_t bytes) {
  done_bytes_ += bytes;
  if (progress_ && !progress_(done_bytes_, total_bytes_)) {
    return make_error(Errc::cancelled, "loading was stopped after " + std::to_string(done_bytes_) +
                                           " of " + std::to_string(total_bytes_) + " bytes");
  }
  return {};
}

Result<DeviceTensor> WeightLoader::copy_bytes(std::span<const std::byte> bytes) {
  DeviceTensor tensor;
  CEDAR_TRY(tensor.buffer, Buffer::allocate(ctx_.device, static_cast<int64_t>(bytes.size())));
  CEDAR_CHECK_OK(copy_to_device(ctx_.device, tensor.buffer.data(), bytes.data(),
                                static_cast<int64_t>(bytes.size()), ctx_.cuda_stream));
  return tensor;
}

Result<DeviceTensor> WeightLoader::copy(const TensorView& view) {
  if (view.empty()) return DeviceTensor();  // optional in the format: gate.bias_vl without vision
  const auto bytes = static_cast<size_t>(view.bytes());
  CEDAR_TRY(DeviceTensor tensor, copy_bytes({static_cast<const std::byte*>(view.data), bytes}));
  CEDAR_CHECK_OK(loaded(view.bytes()));
  return tensor;
}

Result<kernels::PackedWeight> WeightLoader::linear(const model::LinearTensors& tensors) {
  ArenaScope scope(*ctx_.arena);
  CEDAR_TRY(kernels::PackedWeight packed, kernels::pack_weight(ctx_, weight_view(tensors)));
  CEDAR_CHECK_OK(
      loaded(tensors.weight.bytes() + (tensors.scale.empty() ? 0 : tensors.scale.bytes())));
  return packed;
}

Result<HcLayerWeights> WeightLoader::hc(const model::HcTensors& tensors) {
  HcLayerWeights out;
  CEDAR_TRY(out.fn, copy(tensors.fn));
  CEDAR_TRY(out.base, copy(tensors.base));
  CEDAR_TRY(out.scale, copy(tensors.scale));
  return out;
}

Result<kernels::ExpertWeights> WeightLoader::expert(const model::ExpertTensors& tensors) {
  kernels::ExpertWeights out;
  CEDAR_TRY(out.w1, linear(tensors.w1));
  CEDAR_TRY(out.w3, linear(tensors.w3));
  CEDAR_TRY(out.w2, linear(tensors.w2));
  return out;
}

Result<std::vector<kernels::PackedWeight>> WeightLoader::output_groups(
    const model::LinearTensors& wo_a) {
  // Stored FP8, used as bf16 without activation quantisation (spec/model.md 2.4): decode, exactly, once.
  const int64_t columns = wo_a.weight.shape.at(1);
  const int64_t rank = config_.o_lora_rank;
  const int64_t scale_columns = (columns + 31) / 32;
  const auto codes = wo_a.weight.as<uint8_t>();
  const auto scales = wo_a.scale.as<uint8_t>();
  std::vector<kernels::PackedWeight> groups;
  std::vector<Bf16> decoded(static_cast<size_t>(rank * columns));
  for (int64_t g = 0; g < config_.o_groups; ++g) {
    for (int64_t r = 0; r < rank; ++r) {
      const int64_t row = g * rank + r;
      for (int64_t c = 0; c < columns; ++c) {
        const float scale =
            e8m0_to_float(scales[static_cast<size_t>(row / 32 * scale_columns + c / 32)]);
        const float code = e4m3_to_float(codes[static_cast<size_t>(row * columns + c)]);
        decoded[static_cast<size_t>(r * columns + c)] = Bf16(code * scale);
      }
    }
    kernels::WeightView view{kernels::WeightFormat::bf16, rank, columns, decoded.data(), nullptr};
    ArenaScope scope(*ctx_.arena);
    CEDAR_TRY(kernels::PackedWeight packed, kernels::pack_weight(ctx_, view));
    groups.push_back(std::move(packed));
  }
  CEDAR_CHECK_OK(loaded(wo_a.weight.bytes() + wo_a.scale.bytes()));
  return groups;
}

Result<LayerWeights> WeightLoader::layer(const model::LayerTensors& tensors) {
  LayerWeights out;
  out.boundary_only = tensors.wq_a.weight.empty();
  CEDAR_TRY(out.attn_norm, copy(tensors.attn_norm));
  if (tensors.compressor) {
    CompressorWeights& compressor = out.compressor.emplace();
    CEDAR_TRY(compressor.wkv, linear({tensors.compressor->wkv, {}}));
    if (!tensors.compressor->wgate.empty()) {
      CEDAR_TRY(compressor.wgate, linear({tensors.compressor->wgate, {}}));
    }
    CEDAR_TRY(compressor.norm, copy(tensors.compressor->norm));
  }
  if (tensors.indexer && !tensors.indexer->wk.empty()) {
    IndexKeyWeights& key = out.index_key.emplace();
    CEDAR_TRY(key.wk, linear({tensors.indexer->wk, {}}));
    CEDAR_TRY(key.norm, copy(tensors.indexer->k_norm));
  }
  if (out.boundary_only) return out;

  if (tensors.indexer && !tensors.indexer->weights_proj.empty()) {
    IndexQueryWeights& query = out.index_query.emplace();
    CEDAR_TRY(query.wq_b, linear(tensors.indexer->wq_b));
    CEDAR_TRY(query.weights_proj, linear({tensors.indexer->weights_proj, {}}));
  }
  CEDAR_TRY(out.wq_a, linear(tensors.wq_a));
  CEDAR_TRY(out.wq_b, linear(tensors.wq_b));
  CEDAR_TRY(out.wkv, linear(tensors.wkv));
  CEDAR_TRY(out.wo_a, output_groups(tensors.wo_a));
  CEDAR_TRY(out.wo_b, linear(tensors.wo_b));
  CEDAR_TRY(out.q_norm, copy(tensors.q_norm));
  CEDAR_TRY(out.kv_norm, copy(tensors.kv_norm));
  CEDAR_TRY(out.sink, copy(tensors.attn_sink));
  CEDAR_TRY(out.ffn_norm, copy(tensors.ffn_norm));
  CEDAR_TRY(out.hc_attn, hc(tensors.hc_attn));
  CEDAR_TRY(out.hc_ffn, hc(tensors.hc_ffn));
  CEDAR_TRY(out.gate, linear({tensors.gate_weight, {}}));
  CEDAR_TRY(out.gate_bias, copy(tensors.gate_bias));
  CEDAR_TRY(out.gate_bias_image, copy(tensors.gate_bias_vl));
  CEDAR_TRY(out.shared, expert(tensors.shared));
  for (const model::ExpertTensors& routed : tensors.experts) {
    CEDAR_TRY(kernels::ExpertWeights packed, expert(routed));
    out.experts.push_back(std::move(packed));
  }
  if (tensors.engram) {
    EngramWeights& engram = out.engram.emplace();
    CEDAR_TRY(engram.wkv, linear(tensors.engram->wkv));
    CEDAR_TRY(engram.q_weight, copy(tensors.engram->q_weight));
    CEDAR_TRY(engram.k_weight, copy(tensors.engram->k_weight));
  }
  return out;
}

Result<DrafterWeights> WeightLoader::drafter(const model::DrafterTensors& tensors) {
  DrafterWeights out;
  for (const model::LayerTensors& stage : tensors.stages) {
    CEDAR_TRY(LayerWeights weights, layer(stage));
    out.stages.push_back(std::move(weights));
  }
  CEDAR_TRY(out.main_proj, linear(tensors.main_proj));
  CEDAR_TRY(out.main_norm, copy(tensors.main_norm));
  CEDAR_TRY(out.norm, copy(tensors.norm));
  CEDAR_TRY(out.markov_embed, copy(tensors.markov_embed));
  CEDAR_TRY(out.markov_head, linear({tensors.markov_head, {}}));
  CEDAR_TRY(out.confidence, linear({tensors.confidence_proj, {}}));
  return out;
}

}  // namespace cedar::engine
