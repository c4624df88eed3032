#pragma once
// docs/metrics.md is what this writes; a test compares them.

#include <string>

namespace cedar::monitoring {

/// Markdown: every family by role, then the aliases.
std::string describe_metrics();

}  // namespace cedar::monitoring
