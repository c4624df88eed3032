#pragma once
// What the stages and the cache of this process say of themselves, as metrics. No CAF type appears here.

#include <memory>

#include "actors/load_board.h"
#include "monitoring/metrics.h"

namespace cedar::actors {

/// Reads the board at every scrape, as long as the handle lives.
[[nodiscard]] std::shared_ptr<void> report_board(std::shared_ptr<const LoadBoard> board,
                                                 monitoring::Metrics& metrics);

}  // namespace cedar::actors
