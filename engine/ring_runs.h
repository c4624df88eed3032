#pragma once
// The rows of a range of positions in a window ring: one or two runs of neighbours.

#include <algorithm>
#include <cstdint>

#include "core/ids.h"
#include "core/result.h"
#include "kernels/paged_rows.h"

namespace cedar::engine {

/// Calls visit(first row of the run, offset of the run in bytes from the range's first row, bytes of the run).
/// REQUIRES: end - begin <= rings.window.
template <class Visit>
Status for_each_ring_run(const kernels::WindowRings& rings, int64_t slot, Position begin,
                         Position end, const Visit& visit) {
  for (Position p = begin; p < end;) {
    const int64_t rows = std::min<int64_t>(end - p, rings.window - p % rings.window);
    CEDAR_CHECK_OK(
        visit(rings.row(slot, p), (p - begin) * rings.row_bytes, rows * rings.row_bytes));
    p += rows;
  }
  return {};
}

}  // namespace cedar::engine
