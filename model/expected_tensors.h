#pragma once
// Every tensor a checkpoint of a config holds (spec/checkpoint.md section 4) and the roles that
// need it (section 5). A function of the config alone, so `cedar inspect` can sum it without
// weights.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "model/layer_plan.h"
#include "model/model_config.h"

namespace cedar::model {

/// The groups of spec/checkpoint.md 4.5.
enum class TensorGroup : uint8_t {
  embed,
  encoder_layers,  // below the boundary, without Engram
  decoder_layers,
  head,  // final norm and head
  engram_projections,
  engram_tables,  // rows and their scales
  drafter,
  vision,  // tower, aligner, delimiters
};
std::string_view to_string(TensorGroup group);

struct ExpectedTensor {
  std::string name;
  DType dtype = DType::bf16;   // as files name it: I8 for packed FP4
  std::vector<int64_t> shape;  // as files hold it: packed FP4 counts bytes in its last dimension
  TensorGroup group = TensorGroup::embed;
  bool encoder = false;  // needed by the encoder role
  bool decoder = false;  // needed by the decoder role
  bool routed_expert = false;
  LayerId layer = -1;  // of the backbone; -1: of none

  int64_t elements() const;
  int64_t bytes() const { return elements() * dtype_bytes(dtype); }
  /// Logical parameters: none for scales, two per byte of packed FP4.
  int64_t parameters() const;
};

/// REQUIRES: a config that parse_model_config accepted, and its plan.
std::vector<ExpectedTensor> expected_tensors(const ModelConfig& config, const ModelPlan& plan);

}  // namespace cedar::model
