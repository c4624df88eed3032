#pragma once
// Where a prompt is entered whose first tokens have their global rows from a cache, and which of its rows are kept there
// besides (spec/ced.md 7, decision 16).

#include <cstdint>

#include "core/ids.h"
#include "engine/options.h"

namespace cedar::engine {

struct LoadedModel;

/// How an encoder comes by the windows of its layers behind cached tokens.
enum class ResumeKind : uint8_t {
  none,     // there are no cached tokens
  windows,  // taken over as an earlier turn left them
  bounded,  // rebuilt by a replay, as EngineOptions::resume says
  exact,
};

struct ResumePoint {
  ResumeKind kind = ResumeKind::none;
  Position start = 0;   // first row that is computed
  Position cached = 0;  // no global row below is stored
};

/// Where the state of a prompt of `length` tokens is kept for the next turn: behind its last whole block; 0: it has none.
/// No compressor group is open there.
Position windows_position(const LoadedModel& model, Position length);

/// The first row whose encoder output is kept: for the decoder's replay, and for the state at `kept_at` unless that is 0.
Position first_boundary_row(const LoadedModel& model, ReplayMode replay, Position length,
                            Position kept_at = 0);

/// Where a prompt of `length` tokens is entered whose first `cached` tokens have their global rows already, by a replay. The
/// rows from there to `cached` are computed again for their windows and for what is kept of their output, but store no global
/// rows. With `options.resume` exact, early enough that no truncated window reaches anything that is kept.
Position resume_start(const LoadedModel& model, const EngineOptions& options, Position cached,
                      Position length, Position kept_at = 0);

/// The same where windows at `windows_at` could be taken over, if that is not 0: they are, unless they lie so far back that an
/// exact replay is shorter. With them nothing is truncated, whatever `options.resume` says.
ResumePoint resume_point(const LoadedModel& model, const EngineOptions& options, Position cached,
                         Position length, Position kept_at, Position windows_at);

}  // namespace cedar::engine
