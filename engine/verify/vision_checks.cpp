// The vision path: image to pixels, patches, vision transformer, aligner, and a prompt with the image inside.

#include <algorithm>

#include "engine/verify/checks.h"
#include "engine/verify/runs.h"
#include "engine/verify/selection.h"
#include "engine/vision_tower.h"
#include "model/image_processor.h"
#if defined(CEDAR_IMAGE_DECODERS)
#include "model/image_decode.h"
#endif

namespace cedar::engine::verify {
namespace {

class VisionRun {
 public:
  VisionRun(Session& session, GoldenFile& file, const VisionTower& tower)
      : session_(session), file_(file), tower_(tower) {}

  void run() {
    const TensorView* pixels = file_.tensor("pixels", DType::u8, {kAny, kAny, 3});
    if (pixels == nullptr) return session_.report().skip("vision", "no pixels are recorded");
    model::RgbImage image;
    image.height = pixels->shape[0];
    image.width = pixels->shape[1];
    const auto bytes = pixels->as<uint8_t>();
    image.pixels.assign(bytes.begin(), bytes.end());
    check_pixels(image);
    const auto processed = model::process_image(image, tower_.config());
    if (!processed) return session_.report().fail(kVisionPatches, "patches", processed.error());
    check_patches(*processed);
    check_grid(*processed);
    check_tower(*processed);
    check_prompt(*processed);
  }

 private:
  Report& report() { return session_.report(); }
  const model::ModelConfig& config() const { return session_.config(); }

  void check_pixels(const model::RgbImage& image) {
    const auto bytes = session_.golden().bytes("image.png");
    if (!bytes) return report().skip("vision.pixels", "image.png is absent");
#if defined(CEDAR_IMAGE_DECODERS)
    const auto decoded = model::decode_image(*bytes);
    if (!decoded) return report().fail(kVisionPixels, "image.png", decoded.error());
    const bool same_size = decoded->width == image.width && decoded->height == image.height;
    report().check(kVisionPixels,
                   count_different(decoded->pixels, image.pixels) + (same_size ? 0 : 1),
                   "image.png");
#else
    static_cast<void>(image);
    report().skip("vision.pixels", "this build has no image decoders");
#endif
  }

  void check_patches(const model::ProcessedImage& processed) {
    const int64_t patch = tower_.config().patch_size;
    const model::ImagePatches& patches = processed.patches;
    const TensorView* expected = file_.tensor("patches", DType::bf16, {kAny, 3, patch, patch});
    if (expected == nullptr) return;
    report().check(kVisionPatches,
                   count_different(widen(patches.values.data(), std::ssize(patches.values)),
                                   floats(*expected)),
                   "patches");
  }

  void check_grid(const model::ProcessedImage& processed) {
    const nlohmann::json& manifest = session_.golden().manifest();
    if (!manifest.contains("vision") || !manifest["vision"].is_object()) return;
    const nlohmann::json& grid = manifest["vision"];
    const auto recorded = [&](const char* key) -> int64_t {
      return grid.contains(key) && grid[key].is_number_integer() ? grid[key].get<int64_t>() : -1;
    };
    const std::vector<int64_t> expected = {recorded("n_vit_h"), recorded("n_vit_w"),
                                           recorded("n_llm_h"), recorded("n_llm_w")};
    const std::vector<int64_t> found = {processed.patches.rows, processed.patches.columns,
                                        processed.plan.grid.rows, processed.plan.grid.columns};
    report().check(kVisionGrid, count_different(found, expected), "manifest.json: vision");
    start_ = recorded("image_start");
  }

  /// Each half on its recorded input.
  void check_tower(const model::ProcessedImage& processed) {
    kernels::KernelContext& ctx = session_.ctx();
    session_.runner().runtime().begin_step();
    const int64_t patches = processed.patches.rows * processed.patches.columns;
    const TensorView* vit =
        file_.tensor("vit_out", DType::bf16, {patches, tower_.config().hidden_size});
    if (vit == nullptr) return;
    const auto found = tower_.run_vit(ctx, processed.patches);
    if (!found) {
      report().fail(kVisionTower, "vit_out", found.error());
    } else {
      report().check(kVisionTower,
                     relative_l2(widen(found->data(), std::ssize(*found)), floats(*vit)),
                     "vit_out");
    }
    const model::ImageGrid grid = processed.plan.grid;
    const TensorView* aligned =
        file_.tensor("aligner_out", DType::bf16, {grid.rows * grid.columns, config().hidden_size});
    if (aligned == nullptr) return;
    const auto rows =
        tower_.run_aligner(ctx, vit->as<Bf16>(), processed.patches.rows, processed.patches.columns);
    if (!rows) return report().fail(kVisionAligner, "aligner_out", rows.error());
    report().check(kVisionAligner,
                   relative_l2(widen(rows->data(), std::ssize(*rows)), floats(*aligned)),
                   "aligner_out");
  }

  void check_prompt(const model::ProcessedImage& processed) {
    const TensorView* tokens = file_.tensor("tokens", DType::i32, {kAny});
    if (tokens == nullptr) return;
    const auto ids = tokens->as<int32_t>();
    const std::vector<TokenId> prompt(ids.begin(), ids.end());
    const int64_t n = std::ssize(prompt);
    check_types(processed.plan.grid, prompt);
    const TensorView* hashes =
        file_.tensor("hash_ids", DType::i64,
                     {n, std::ssize(config().engram_layer_ids), session_.model().engram.columns});
    if (hashes != nullptr) {
      const auto found = engram_row_ids(session_, prompt);
      if (!found) {
        report().fail(kVisionHashIds, "hash_ids", found.error());
      } else {
        report().check(kVisionHashIds, count_different(*found, integers(*hashes)), "hash_ids");
      }
    }
    run_prompt(processed, prompt);
  }

  /// The span's types, from the grid and its place in the prompt.
  void check_types(model::ImageGrid grid, const std::vector<TokenId>& prompt) {
    const int64_t n = std::ssize(prompt);
    const TensorView* types = file_.tensor("token_types", DType::i32, {n});
    if (start_ < 0) {
      start_ = std::find(prompt.begin(), prompt.end(), config().image_token_id) - prompt.begin();
    }
    if (types == nullptr) return;
    std::vector<int64_t> found(static_cast<size_t>(n),
                               static_cast<int64_t>(model::ImageTokenType::text));
    int64_t at = start_;
    for (model::ImageTokenType type : model::image_span_types(grid)) {
      if (at < n) found[static_cast<size_t>(at)] = static_cast<int64_t>(type);
      ++at;
    }
    report().check(kVisionSpan, count_different(found, integers(*types)), "token_types");
  }

  void run_prompt(const model::ProcessedImage& processed, const std::vector<TokenId>& prompt) {
    const int64_t n = std::ssize(prompt);
    session_.runner().runtime().begin_step();
    auto rows = tower_.read_image(session_.ctx(), processed, start_);
    if (!rows) return report().fail(kVisionLogits, "image rows", rows.error());
    auto sequence = OpenSequence::open(session_.runner(), n);
    if (!sequence) return report().fail(kVisionLogits, "logits", sequence.error());
    Recorder recorder;
    auto output = sequence->run(prompt, true, &recorder, {std::move(*rows)});
    if (!output) return report().fail(kVisionLogits, "logits", output.error());
    const TensorView* logits = file_.tensor("logits", DType::f32, {n, config().vocab_size});
    if (logits != nullptr) {
      std::vector<float> found;
      for (const auto& row : output->logits) found.insert(found.end(), row.begin(), row.end());
      report().check(kVisionLogits, relative_l2(found, floats(*logits)), "logits");
    }
    for (const LayerTensor& entry : file_.layer_tensors("", "experts")) {
      const TensorView* experts =
          file_.tensor(entry.name, DType::i32, {n, config().num_experts_per_tok});
      if (experts == nullptr || !session_.has_layer(entry.layer)) continue;
      check_share(report(), kVisionExperts, entry.name, recorder.routing[entry.layer].experts,
                  Lists{integers(*experts), config().num_experts_per_tok}, {});
    }
  }

  Session& session_;
  GoldenFile& file_;
  const VisionTower& tower_;
  int64_t start_ = -1;  // position of the image in the prompt
};

}  // namespace

void check_vision(Session& session) {
  GoldenFile* file = session.golden().file("vision");
  if (file == nullptr) return session.report().skip("vision", "vision.safetensors is absent");
  session.progress("vision", "image");
  const auto tower = VisionTower::create(session.model().checkpoint, session.ctx());
  if (!tower) {
    return session.report().fail(kVisionTower, "vision.safetensors", tower.error());
  }
  VisionRun(session, *file, **tower).run();
}

}  // namespace cedar::engine::verify
