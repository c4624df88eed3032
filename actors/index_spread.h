#pragma once
// Index keys of this process's stages, spread over the cluster's indexers: engine/index_service.h over calls of the data
// plane. No CAF type appears here.
//
// A finished block goes to the indexer that its number chooses, in turn: whatever part of a prompt is visible, every
// indexer holds its share of it, so that early chunks are scanned by all as well. Who fails a call, or is late, gets no
// further one until the directory changes; its blocks are scanned by the stage again, and go to the others.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/service_directory.h"
#include "engine/index_service.h"
#include "transport/calls.h"

namespace cedar::actors {

struct IndexSpreadOptions {
  std::chrono::milliseconds scan_timeout{2000};
  std::chrono::milliseconds append_timeout{5000};
  int64_t append_bytes = int64_t{4}
                         << 20;  // of one call; one is under way per sequence and indexer
  int64_t scan_bytes =
      int64_t{8} << 20;  // of a call's request and of its reply; longer scans are several calls
};

struct IndexHolder {
  std::string node;
  transport::CallTarget target;
};

struct IndexSpreadStats {
  uint64_t scans = 0;
  uint64_t scan_calls = 0;
  uint64_t failed_scan_calls = 0;  // what they were about was scanned here
  uint64_t appended_blocks = 0;
  uint64_t failed_append_calls = 0;
  int64_t sequences = 0;       // gauge: that have blocks elsewhere or on the way
  int64_t spread_blocks = 0;   // gauge: that others have
  int64_t holders = 0;         // gauge: of the directory
  int64_t failed_holders = 0;  // gauge: of these, not asked
};

class IndexSpread final : public engine::IndexService {
 public:
  /// `calls` is shut down before it goes; this object may outlive it.
  explicit IndexSpread(transport::Calls& calls, const IndexSpreadOptions& options = {});
  ~IndexSpread() override;

  /// Who can be asked from now on; those that had failed, too.
  void set_holders(std::vector<IndexHolder> holders);
  IndexSpreadStats stats() const;

  engine::IndexSequence open(const engine::IndexBlockLayout& layout) override;
  std::vector<int32_t> wanted(engine::IndexSequence sequence, int64_t finished) override;
  void append(engine::IndexSequence sequence, std::vector<int32_t> blocks,
              std::vector<std::byte> keys) override;
  void close(engine::IndexSequence sequence) override;
  std::unique_ptr<engine::IndexScan> scan(const engine::IndexQuestions& questions,
                                          std::span<const engine::IndexScanRows> entries) override;

  class Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

/// Tells `spread` of the indexers of `directory`, now and whenever they change, as long as the handle lives.
[[nodiscard]] std::shared_ptr<void> follow_indexers(const ServiceDirectory& directory,
                                                    std::shared_ptr<IndexSpread> spread);

}  // namespace cedar::actors
