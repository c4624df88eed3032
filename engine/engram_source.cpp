#include "engine/engram_source.h"

#include <cstring>
#include <string>

#include "engine/loaded_model.h"

namespace cedar::engine {
namespace {

class LocalEngramSource final : public EngramSource {
 public:
  explicit LocalEngramSource(std::shared_ptr<const LoadedModel> model) : model_(std::move(model)) {}

  Status fetch(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) override {
    const auto& tensors = model_->checkpoint.layers[static_cast<size_t>(layer)];
    if (!tensors || !tensors->engram) {
      return make_error(Errc::unavailable,
                        "no Engram table of layer " + std::to_string(layer) + " here");
    }
    const auto codes = static_cast<const uint8_t*>(tensors->engram->embed_weight.data);
    const auto scales = static_cast<const uint8_t*>(tensors->engram->embed_scale.data);
    const int64_t rows = tensors->engram->embed_weight.shape.at(0);
    const int64_t dim = tensors->engram->embed_weight.shape.at(1);
    const int64_t groups = dim / 32;
    for (int64_t row : row_ids) {
      CEDAR_ASSERT(row >= 0 && row < rows, "Engram row " + std::to_string(row));
      std::memcpy(packed, codes + row * dim, static_cast<size_t>(dim));
      std::memcpy(packed + dim, scales + row * groups, static_cast<size_t>(groups));
      packed += dim + groups;
    }
    return {};
  }

 private:
  std::shared_ptr<const LoadedModel> model_;
};

}  // namespace

std::shared_ptr<EngramSource> local_engram_source(std::shared_ptr<const LoadedModel> model) {
  return std::make_shared<LocalEngramSource>(std::move(model));
}

}  // namespace cedar::engine
