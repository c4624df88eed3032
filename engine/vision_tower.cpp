#include "engine/vision_tower.h"

#include <cmath>
#include <string>

#include "core/units.h"
#include "engine/model_loader.h"
#include "engine/upload.h"
#include "kernels/dense_attention.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"

namespace cedar::engine {
namespace {

constexpr float kNormEps = 1e-6f;

/// y = x W^T, all bf16, both sides dense.
Status linear(kernels::KernelContext& ctx, const kernels::PackedWeight& weight, const Bf16* x,
              int64_t rows, Bf16* y) {
  kernels::LinearParams p;
  p.weight = &weight;
  p.x = x;
  p.x_stride = weight.in;
  p.y = y;
  p.y_stride = weight.out;
  p.rows = rows;
  return kernels::linear(ctx, p);
}

/// The same with a bias, added to the fp32 sums before the one rounding, then activation and
/// residual.
Status linear_with_bias(kernels::KernelContext& ctx, const kernels::PackedWeight& weight,
                        const Bf16* x, kernels::BiasParams bias) {
  ArenaScope scope(*ctx.arena);
  float* sum = ctx.arena->allocate<float>(bias.rows * weight.out);
  kernels::LinearParams p;
  p.weight = &weight;
  p.x = x;
  p.x_stride = weight.in;
  p.y = sum;
  p.y_stride = weight.out;
  p.y_dtype = DType::f32;
  p.rows = bias.rows;
  CEDAR_CHECK_OK(kernels::linear(ctx, p));
  bias.sum = sum;
  bias.columns = weight.out;
  return kernels::add_bias(ctx, bias);
}

struct Angles {
  std::vector<float> cos, sin;  // [rows, head_dim / 2]
};

/// Per patch, the first quarter of a head turns with the patch's row, the second with its column;
/// each pair takes one value of each half of the head.
Angles make_angles(int64_t patch_rows, int64_t patch_columns, int64_t head_dim, double theta) {
  const int64_t quarter = head_dim / 4;
  std::vector<float> inverse(static_cast<size_t>(quarter));
  for (int64_t k = 0; k < quarter; ++k) {
    const double exponent = static_cast<double>(2 * k) / static_cast<double>(head_dim / 2);
    inverse[static_cast<size_t>(k)] = static_cast<float>(std::pow(theta, -exponent));
  }
  Angles angles;
  const auto count = static_cast<size_t>(patch_rows * patch_columns * 2 * quarter);
  angles.cos.reserve(count);
  angles.sin.reserve(count);
  for (int64_t row = 0; row < patch_rows; ++row) {
    for (int64_t column = 0; column < patch_columns; ++column) {
      for (const int64_t position : {row, column}) {
        for (const float inv : inverse) {
          // The angle is one fp32 product; its cosine and sine are exact before they are rounded.
          const double angle = static_cast<double>(static_cast<float>(position) * inv);
          angles.cos.push_back(static_cast<float>(std::cos(angle)));
          angles.sin.push_back(static_cast<float>(std::sin(angle)));
        }
      }
    }
  }
  return angles;
}

/// Cells of ratio x ratio patches, row-major, [cells, width * ratio^2]; inside a cell the order is
/// channel, dy, dx, and patches beyond the image's edge are zero.
std::vector<Bf16> gather_cells(std::span<const Bf16> vit, int64_t patch_rows, int64_t patch_columns,
                               int64_t width, int64_t ratio) {
  const int64_t cell_columns = ceil_div(patch_columns, ratio);
  const int64_t cell = ratio * ratio;
  std::vector<Bf16> cells(
      static_cast<size_t>(ceil_div(patch_rows, ratio) * cell_columns * width * cell));
  for (int64_t y = 0; y < patch_rows; ++y) {
    for (int64_t x = 0; x < patch_columns; ++x) {
      const Bf16* patch = vit.data() + (y * patch_columns + x) * width;
      Bf16* target = cells.data() + (y / ratio * cell_columns + x / ratio) * width * cell +
                     y % ratio * ratio + x % ratio;
      for (int64_t c = 0; c < width; ++c) target[c * cell] = patch[c];
    }
  }
  return cells;
}

std::vector<Bf16> host_copy(const TensorView& view) {
  const auto values = view.as<Bf16>();
  return {values.begin(), values.end()};
}

void append(std::vector<Bf16>& values, const std::vector<Bf16>& more) {
  values.insert(values.end(), more.begin(), more.end());
}

}  // namespace

Result<std::unique_ptr<VisionTower>> VisionTower::create(const model::Checkpoint& checkpoint,
                                                         kernels::KernelContext& ctx) {
  if (!checkpoint.config.vision || !checkpoint.vision) {
    return make_error(Errc::unsupported, "images: this model has no vision tower");
  }
  std::unique_ptr<VisionTower> tower(new VisionTower());
  tower->config_ = *checkpoint.config.vision;
  tower->hidden_size_ = checkpoint.config.hidden_size;
  CEDAR_CHECK_OK(tower->load(checkpoint, ctx));
  return tower;
}

Status VisionTower::load(const model::Checkpoint& checkpoint, kernels::KernelContext& ctx) {
  const model::VisionTensors& tensors = *checkpoint.vision;
  const LoadProgress no_progress;
  WeightLoader loader(ctx, checkpoint.config, 0, no_progress);
  const auto linear_of = [&loader](const TensorView& weight) {
    return loader.linear({weight, {}});
  };

  CEDAR_TRY(patch_embed_, linear_of(tensors.patch_weight));
  CEDAR_TRY(patch_bias_, loader.copy(tensors.patch_bias));
  for (const model::VisionBlockTensors& block : tensors.blocks) {
    BlockWeights& out = blocks_.emplace_back();
    CEDAR_TRY(out.norm1, loader.copy(block.norm1));
    CEDAR_TRY(out.norm2, loader.copy(block.norm2));
    CEDAR_TRY(out.wqkv, linear_of(block.wqkv));
    CEDAR_TRY(out.wqkv_bias, loader.copy(block.wqkv_bias));
    CEDAR_TRY(out.wo, linear_of(block.wo));
    CEDAR_TRY(out.wo_bias, loader.copy(block.wo_bias));
    CEDAR_TRY(out.w1, linear_of(block.w1));
    CEDAR_TRY(out.w2, linear_of(block.w2));
  }
  CEDAR_TRY(final_norm_, loader.copy(tensors.norm));

  CEDAR_TRY(aligner_w1_, linear_of(tensors.aligner_w1));
  CEDAR_TRY(aligner_b1_, loader.copy(tensors.aligner_b1));
  CEDAR_TRY(aligner_w2_, linear_of(tensors.aligner_w2));
  CEDAR_TRY(aligner_b2_, loader.copy(tensors.aligner_b2));

  image_start_ = host_copy(tensors.image_start);
  image_end_ = host_copy(tensors.image_end);
  image_newline_ = host_copy(tensors.image_newline);
  return {};
}

Status VisionTower::norm(kernels::KernelContext& ctx, const DeviceTensor& weight, const Bf16* x,
                         Bf16* y, int64_t rows) const {
  kernels::RmsNormParams p;
  p.x = x;
  p.x_stride = config_.hidden_size;
  p.weight = weight.as<Bf16>();
  p.y = y;
  p.y_stride = config_.hidden_size;
  p.rows = rows;
  p.columns = config_.hidden_size;
  p.eps = kNormEps;
  return kernels::rms_norm(ctx, p);
}

Status VisionTower::attention(kernels::KernelContext& ctx, const BlockWeights& weights,
                              Rotation rotation, const Bf16* x, Bf16* out, int64_t rows) const {
  ArenaScope scope(*ctx.arena);
  const int64_t width = config_.hidden_size;
  const int64_t heads = config_.num_attention_heads;
  const int64_t head_dim = width / heads;
  Bf16* y = ctx.arena->allocate<Bf16>(rows * width);
  Bf16* qkv = ctx.arena->allocate<Bf16>(rows * 3 * width);

  CEDAR_CHECK_OK(norm(ctx, weights.norm1, x, y, rows));
  kernels::BiasParams bias;
  bias.x = qkv;
  bias.bias = weights.wqkv_bias.as<Bf16>();
  bias.rows = rows;
  CEDAR_CHECK_OK(linear_with_bias(ctx, weights.wqkv, y, bias));
  CEDAR_CHECK_OK(
      kernels::vision_rope(ctx, {qkv, rotation.cos, rotation.sin, rows, heads, head_dim}));

  kernels::DenseAttentionParams attend;
  attend.qkv = qkv;
  attend.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  attend.o = y;
  attend.rows = rows;
  attend.heads = heads;
  attend.head_dim = head_dim;
  CEDAR_CHECK_OK(kernels::dense_attention(ctx, attend));

  bias.x = out;
  bias.bias = weights.wo_bias.as<Bf16>();
  bias.residual = x;
  return linear_with_bias(ctx, weights.wo, y, bias);
}

Status VisionTower::feed_forward(kernels::KernelContext& ctx, const BlockWeights& weights,
                                 const Bf16* x, Bf16* out, int64_t rows) const {
  ArenaScope scope(*ctx.arena);
  const int64_t width = config_.hidden_size;
  const int64_t inner = config_.intermediate_size;
  Bf16* y = ctx.arena->allocate<Bf16>(rows * width);
  Bf16* gate_up = ctx.arena->allocate<Bf16>(rows * 2 * inner);
  Bf16* activated = ctx.arena->allocate<Bf16>(rows * inner);

  CEDAR_CHECK_OK(norm(ctx, weights.norm2, x, y, rows));
  CEDAR_CHECK_OK(linear(ctx, weights.w1, y, rows, gate_up));
  CEDAR_CHECK_OK(kernels::silu_mul(ctx, {gate_up, activated, rows, inner}));
  CEDAR_CHECK_OK(linear(ctx, weights.w2, activated, rows, out));
  kernels::BiasParams residual;
  residual.x = out;
  residual.residual = x;
  residual.rows = rows;
  residual.columns = width;
  return kernels::add_bias(ctx, residual);
}

Status VisionTower::check_patches(const model::ImagePatches& patches) const {
  const int64_t cell = config_.downsample_ratio * config_.downsample_ratio;
  const int64_t count = patches.rows * patches.columns;
  if (patches.rows <= 0 || patches.columns <= 0 || count > config_.max_image_tokens * cell ||
      patches.patch_values != patch_embed_.in ||
      static_cast<int64_t>(patches.values.size()) != count * patches.patch_values) {
    return make_error(Errc::invalid_argument,
                      "image: " + std::to_string(patches.rows) + "x" +
                          std::to_string(patches.columns) + " patches of " +
                          std::to_string(patches.patch_values) + " values, " +
                          std::to_string(patches.values.size()) + " in all; a patch has " +
                          std::to_string(patch_embed_.in) + ", an image at most " +
                          std::to_string(config_.max_image_tokens * cell) + " patches");
  }
  return {};
}

Result<std::vector<Bf16>> VisionTower::run_vit(kernels::KernelContext& ctx,
                                               const model::ImagePatches& patches) const {
  CEDAR_CHECK_OK(check_patches(patches));
  ArenaScope scope(*ctx.arena);
  const int64_t rows = patches.rows * patches.columns;
  const int64_t width = config_.hidden_size;
  const Angles angles = make_angles(patches.rows, patches.columns,
                                    width / config_.num_attention_heads, config_.rope_theta);
  const Rotation rotation{upload(ctx, angles.cos), upload(ctx, angles.sin)};
  const Bf16* input = upload(ctx, patches.values);
  Bf16* x = ctx.arena->allocate<Bf16>(rows * width);
  Bf16* between = ctx.arena->allocate<Bf16>(rows * width);

  kernels::BiasParams bias;
  bias.x = x;
  bias.bias = patch_bias_.as<Bf16>();
  bias.rows = rows;
  CEDAR_CHECK_OK(linear_with_bias(ctx, patch_embed_, input, bias));
  for (const BlockWeights& block : blocks_) {
    CEDAR_CHECK_OK(attention(ctx, block, rotation, x, between, rows));
    CEDAR_CHECK_OK(feed_forward(ctx, block, between, x, rows));
  }
  CEDAR_CHECK_OK(norm(ctx, final_norm_, x, between, rows));
  CEDAR_TRY(const auto values, HostValues<Bf16>::read(ctx, between, rows * width));
  return std::vector<Bf16>(values.data(), values.data() + rows * width);
}

Result<std::vector<Bf16>> VisionTower::run_aligner(kernels::KernelContext& ctx,
                                                   std::span<const Bf16> vit, int64_t patch_rows,
                                                   int64_t patch_columns) const {
  const int64_t width = config_.hidden_size;
  const int64_t patches = patch_rows * patch_columns;
  if (patch_rows <= 0 || patch_columns <= 0 ||
      static_cast<int64_t>(vit.size()) != patches * width) {
    return make_error(Errc::invalid_argument, "image: " + std::to_string(vit.size()) +
                                                  " values for " + std::to_string(patch_rows) +
                                                  "x" + std::to_string(patch_columns) +
                                                  " patches of " + std::to_string(width));
  }
  ArenaScope scope(*ctx.arena);
  const std::vector<Bf16> cells =
      gather_cells(vit, patch_rows, patch_columns, width, config_.downsample_ratio);
  const int64_t tokens = static_cast<int64_t>(cells.size()) / aligner_w1_.in;
  Bf16* inner = ctx.arena->allocate<Bf16>(tokens * aligner_w1_.out);
  Bf16* out = ctx.arena->allocate<Bf16>(tokens * hidden_size_);

  kernels::BiasParams bias;
  bias.x = inner;
  bias.bias = aligner_b1_.as<Bf16>();
  bias.activation = kernels::Activation::gelu_erf;
  bias.rows = tokens;
  CEDAR_CHECK_OK(linear_with_bias(ctx, aligner_w1_, upload(ctx, cells), bias));
  bias.x = out;
  bias.bias = aligner_b2_.as<Bf16>();
  bias.activation = kernels::Activation::none;
  CEDAR_CHECK_OK(linear_with_bias(ctx, aligner_w2_, inner, bias));
  CEDAR_TRY(const auto values, HostValues<Bf16>::read(ctx, out, tokens * hidden_size_));
  return std::vector<Bf16>(values.data(), values.data() + tokens * hidden_size_);
}

Result<ImageRows> VisionTower::read_image(kernels::KernelContext& ctx,
                                          const model::ProcessedImage& image,
                                          Position position) const {
  const model::ImageGrid grid = image.plan.grid;
  const int64_t ratio = config_.downsample_ratio;
  if (grid != model::ImageGrid{ceil_div(image.patches.rows, ratio),
                               ceil_div(image.patches.columns, ratio)}) {
    return make_error(Errc::invalid_argument, "image: " + std::to_string(image.patches.rows) + "x" +
                                                  std::to_string(image.patches.columns) +
                                                  " patches do not make " +
                                                  std::to_string(grid.rows) + "x" +
                                                  std::to_string(grid.columns) + " tokens");
  }
  CEDAR_TRY(const std::vector<Bf16> vit, run_vit(ctx, image.patches));
  CEDAR_TRY(const std::vector<Bf16> tokens,
            run_aligner(ctx, vit, image.patches.rows, image.patches.columns));

  ImageRows span{position, grid.span_tokens(), {}};
  span.values.reserve(static_cast<size_t>(span.rows * hidden_size_));
  auto next = tokens.begin();
  for (const model::ImageTokenType type : model::image_span_types(grid)) {
    switch (type) {
      case model::ImageTokenType::start: append(span.values, image_start_); break;
      case model::ImageTokenType::newline: append(span.values, image_newline_); break;
      case model::ImageTokenType::end: append(span.values, image_end_); break;
      case model::ImageTokenType::text: break;  // no part of a span
      case model::ImageTokenType::image:
        span.values.insert(span.values.end(), next, next + hidden_size_);
        next += hidden_size_;
        break;
    }
  }
  return span;
}

}  // namespace cedar::engine
