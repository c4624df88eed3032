#pragma once
// units.safetensors, in parts.

#include "engine/verify/session.h"

namespace cedar::engine::verify {

void check_linear_units(Session& session, GoldenFile& file);
void check_rope_units(Session& session, GoldenFile& file);
void check_attention_units(Session& session, GoldenFile& file);
void check_model_units(Session& session, GoldenFile& file);

}  // namespace cedar::engine::verify
