#include "engine/resume_point.h"

#include <algorithm>

#include "engine/handoff.h"
#include "engine/loaded_model.h"

namespace cedar::engine {
namespace {

/// A row of the stream behind the encoder depends on (window - 1) rows before it per layer. Kept are the rows behind the
/// cached ones, and the outputs from `first_boundary` on.
Position exact_start(const LoadedModel& model, Position cached, Position first_boundary) {
  const int64_t reach = (model.config.sliding_window - 1) * model.plan.encoder_layers();
  return std::max<Position>(0, std::min(cached, first_boundary) - reach);
}

}  // namespace

Position windows_position(const LoadedModel& model, Position length) {
  return length / model.layout.block_tokens * model.layout.block_tokens;
}

Position first_boundary_row(const LoadedModel& model, ReplayMode replay, Position length,
                            Position kept_at) {
  const Position end = kept_at > 0 ? kept_at : length;
  return end - replay_rows(model, replay, end);
}

Position resume_start(const LoadedModel& model, const EngineOptions& options, Position cached,
                      Position length, Position kept_at) {
  if (cached == 0) return 0;
  const Position first_boundary = first_boundary_row(model, options.replay, length, kept_at);
  if (options.resume == ReplayMode::exact) return exact_start(model, cached, first_boundary);
  return std::max<Position>(0, std::min(cached - model.config.sliding_window, first_boundary));
}

ResumePoint resume_point(const LoadedModel& model, const EngineOptions& options, Position cached,
                         Position length, Position kept_at, Position windows_at) {
  if (cached == 0) return {};
  const Position first_boundary = first_boundary_row(model, options.replay, length, kept_at);
  if (windows_at > 0 && windows_at <= cached &&
      windows_at >= exact_start(model, cached, first_boundary)) {
    return {ResumeKind::windows, windows_at, cached};
  }
  const bool exact = options.resume == ReplayMode::exact;
  return {exact ? ResumeKind::exact : ResumeKind::bounded,
          resume_start(model, options, cached, length, kept_at), cached};
}

}  // namespace cedar::engine
