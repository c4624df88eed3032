#pragma once
// What `cedar inspect` found, and its two forms.

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "model/checkpoint.h"
#include "model/engram_layout.h"
#include "model/footprint.h"

namespace cedar::apps {

/// Weights of the directory whose headers were checked.
struct FoundWeights {
  model::Role role = model::Role::all;
  int64_t files = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;
};

struct InspectReport {
  std::string directory;
  model::ModelConfig config;
  model::ModelPlan plan;
  model::Footprint footprint;
  model::EngramLayout engram;
  std::optional<FoundWeights> weights;
  std::string weights_problem;  // why there are none; empty when found
};

void print_text(const InspectReport& report, std::ostream& out);
void print_json(const InspectReport& report, std::ostream& out);

}  // namespace cedar::apps
