#pragma once
// The role `indexer`: keeps index keys of ranges of blocks for stages elsewhere and scans them. No CAF type appears here: it
// answers calls of the data plane, on a thread of its own with a thread pool for the kernels.

#include <chrono>
#include <cstdint>
#include <memory>

#include "actors/node_service.h"
#include "core/result.h"
#include "engine/index_key_store.h"
#include "transport/calls.h"

namespace cedar::actors {

struct IndexServerOptions {
  int64_t memory_bytes = int64_t{1} << 30;
  int threads = 1;
  std::chrono::milliseconds lease{60000};  // of a part, from the last call about it
  size_t max_waiting = 256;                // calls that are not begun; one more: overloaded
};

struct IndexServerStats {
  engine::IndexKeyStoreStats keys;
  uint64_t appends = 0, scans = 0, scanned_rows = 0, refused = 0;
  uint64_t expired_parts = 0, lost_owners = 0;
};

class IndexServer final : public NodeService {
 public:
  /// Serves at `calls`, which it may outlive, from now on. Errors: those of IndexKeyStore.
  static Result<std::unique_ptr<IndexServer>> start(transport::Calls& calls,
                                                    const IndexServerOptions& options);
  /// Answers nothing any more.
  ~IndexServer() override;
  IndexServer(const IndexServer&) = delete;
  IndexServer& operator=(const IndexServer&) = delete;

  Service description() const override { return {ServiceRole::indexer, 0, 1, ""}; }
  IndexServerStats stats() const;
  void report(monitoring::Metrics& metrics) const override;

  class Impl;

 private:
  explicit IndexServer(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

NodeServiceFactory index_server(const IndexServerOptions& options);

}  // namespace cedar::actors
