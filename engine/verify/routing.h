#pragma once
// Chosen experts, with the selection scores that excuse near ties.

#include <string>
#include <vector>

#include "engine/verify/session.h"

namespace cedar::engine::verify {

/// Compares routed experts [rows, top], in order of selection score, on the recorded router inputs `u`
/// [rows, hidden]. A row that differs is excused when the differing entries' scores lie within two bf16 steps.
void check_routing(Session& session, const Kind& kind, const std::string& what, LayerId layer,
                   const Bf16* u, const Lists& found, const std::vector<int64_t>& expected);

}  // namespace cedar::engine::verify
