#pragma once
// What the sizes of a config must have in common, apart from its layer lists (layer_plan.h).

#include "core/result.h"
#include "model/model_config.h"

namespace cedar::model {

/// Divisibility by quantisation groups, heads by groups, widths by rotary dimensions, experts by
/// top-k.
/// Errors: invalid_config naming the key, its value and the rule.
Status check_shapes(const ModelConfig& config);

}  // namespace cedar::model
