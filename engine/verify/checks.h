#pragma once
// The groups of checks. Each reads what the golden folder holds of it, and says in the report what it could
// not check.

#include "engine/verify/session.h"

namespace cedar::engine::verify {

void check_units(Session& session);
void check_manifest(Session& session);
void check_selection(Session& session);
void check_stages(Session& session);
void check_runs(Session& session);
void check_guided(Session& session);
void check_decode(Session& session);
void check_drafts(Session& session);
void check_vision(Session& session);
void check_consistency(Session& session);
void check_prompts(Session& session);

}  // namespace cedar::engine::verify
