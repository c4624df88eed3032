#pragma once
// One walk over a checkpoint says both what is expected and where its view goes, so that the list
// that the loader demands and the structs that the engine reads cannot drift apart. Internal to
// model/.

#include <vector>

#include "model/checkpoint.h"
#include "model/expected_tensors.h"

namespace cedar::model {

struct CheckpointSlot {
  ExpectedTensor expected;
  TensorView* target = nullptr;
};

/// Sizes `out` for Role::all and returns one slot per tensor. Targets point into `out`: it must not
/// be moved while they are used.
std::vector<CheckpointSlot> checkpoint_slots(const ModelConfig& config, const ModelPlan& plan,
                                             Checkpoint& out);

}  // namespace cedar::model
