#include "engine/model_loader.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/thread_pool.h"
#include "core/units.h"

namespace cedar::engine {
namespace {

// Holds every tensor of the release but the embedding and the head.
constexpr int64_t kStagingBytes = 96_MiB;

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

const std::byte* WeightLoader::stage(const void* from, int64_t bytes, int64_t offset) {
  const auto* source = static_cast<const std::byte*>(from);
  if (ctx_.device.kind == DeviceKind::cpu || bytes > kStagingBytes - offset) return source;
  if (staging_.bytes() == 0) {
    auto pinned = PinnedBuffer::allocate(ctx_.device, kStagingBytes);
    if (!pinned) return source;  // slower, but it works
    staging_ = std::move(*pinned);
  }
  std::byte* to = staging_.data() + offset;
  constexpr int64_t kPiece = 1_MiB;
  ctx_.pool->parallel_for(ceil_div(bytes, kPiece), 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPiece, last = std::min(bytes, end * kPiece);
    std::memcpy(to + first, source + first, static_cast<size_t>(last - first));
  });
  return to;
}

Result<kernels::PackedWeight> WeightLoader::pack(kernels::WeightView view) {
  ArenaScope scope(*ctx_.arena);
  // pack_weight() waits for the device: the buffer is free again when it returns.
  return kernels::pack_weight(ctx_, view);
}

Result<kernels::PackedWeight> WeightLoader::linear(const model::LinearTensors& tensors) {
  kernels::WeightView view = weight_view(tensors);
  const int64_t bytes = tensors.weight.bytes();
  view.data = stage(view.data, bytes, 0);
  if (!tensors.scale.empty()) {
    view.scales = reinterpret_cast<const uint8_t*>(
        stage(view.scales, tensors.scale.bytes(), align_up(bytes, Buffer::kAlignment)));
  }
  CEDAR_TRY(kernels::PackedWeight packed, pack(view));
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
  // What linear() asks of a block-diagonal weight.
  const bool joined = ctx_.device.kind == DeviceKind::cuda && rank % 128 == 0 && columns % 64 == 0;
  const int64_t rows = joined ? rank * config_.o_groups : rank;
  std::vector<kernels::PackedWeight> groups;
  std::vector<Bf16> decoded(static_cast<size_t>(rows * columns));
  for (int64_t first = 0; first < rank * config_.o_groups; first += rows) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = first + r;
      for (int64_t c = 0; c < columns; ++c) {
        const float scale =
            e8m0_to_float(scales[static_cast<size_t>(row / 32 * scale_columns + c / 32)]);
        const float code = e4m3_to_float(codes[static_cast<size_t>(row * columns + c)]);
        decoded[static_cast<size_t>(r * columns + c)] = Bf16(code * scale);
      }
    }
    CEDAR_TRY(kernels::PackedWeight packed,
              pack({kernels::WeightFormat::bf16, rows, columns, decoded.data(), nullptr}));
    groups.push_back(std::move(packed));
  }
  CEDAR_CHECK_OK(loaded(wo_a.weight.bytes() + wo_a.scale.bytes()));
  return groups;
}

Status WeightLoader::build_expert_table(LayerWeights& weights) {
  if (ctx_.device.kind == DeviceKind::cpu) return {};
  CEDAR_TRY(weights.expert_table, kernels::expert_table(ctx_, weights.experts, &weights.shared));
  return {};
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
  CEDAR_CHECK_OK(build_expert_table(out));
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
