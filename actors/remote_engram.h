#pragma once
// Engram rows from the services of a cluster, with a cache of hot rows. No CAF type appears here.
//
// Rows that are asked for ahead wait here, as they came, until they are used; then they, and rows that had to be waited
// for, enter the cache. A row on its way is not asked for twice, whoever asks. A question goes to one replica of its shard;
// one that fails or is slow is passed over for a while, and the next is asked. Only a fetch waits, for all its rows under
// one deadline; while a shard has no replica at all it waits for one to appear.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "actors/data_plane.h"
#include "actors/load_board.h"
#include "engine/engram_source.h"
#include "model/engram_layout.h"

namespace cedar::actors {

struct RemoteEngramOptions {
  std::chrono::milliseconds timeout{2000};  // of a fetch
  int64_t cache_bytes = int64_t{64} << 20;
  int64_t ahead_bytes = int64_t{64}
                        << 20;  // rows asked for ahead and not used yet; more are not asked for
  std::shared_ptr<LoadBoard> board;  // is told of the counters; may be null
};

/// Counters only grow.
struct RemoteEngramStats : EngramCounts {
  int64_t prefetched = 0;  // asked for ahead
  int64_t unused = 0;      // of these, given up before anybody used them
  int64_t calls = 0;
  int64_t calls_failed = 0;  // another replica was asked, if there was one
  double wait_seconds = 0;   // that fetches waited
};

class RemoteEngram final : public engine::EngramSource {
 public:
  /// `plane` has calls and a directory; both outlive the source's last fetch. `layout` names the tables, whose rows have
  /// `row_bytes`.
  RemoteEngram(const DataPlane& plane, const model::EngramLayout& layout, int64_t row_bytes,
               const RemoteEngramOptions& options);
  ~RemoteEngram() override;

  /// Threads: any, several at once. Errors: unavailable and deadline_exceeded, naming the shard; cancelled (shutdown).
  Status fetch(LayerId layer, std::span<const int64_t> row_ids, uint8_t* packed) override;
  void prefetch(LayerId layer, std::span<const int64_t> row_ids) override;
  bool wants_prefetch() const override { return true; }

  RemoteEngramStats stats() const;

  class Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace cedar::actors
