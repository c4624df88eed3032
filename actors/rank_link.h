#pragma once
// From one rank of a pipeline to the next: rows wait in a slot of exported memory until the next rank has fetched them,
// and the call that announces them is answered when all ranks behind are done with them. No CAF type appears here.
//
// Threads: any. A mutex, because slots are taken on the rank's thread and come back on the data plane's; it is held for
// look-ups only.

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "actors/data_plane.h"
#include "actors/export_memory.h"
#include "actors/pipeline.h"
#include "transport/calls.h"

namespace cedar::actors {

class RankLink {
 public:
  /// `on_free` comes on the data plane's thread whenever a slot is free again, also after this object's end; must not
  /// block. REQUIRES: a plane with calls.
  static Result<std::unique_ptr<RankLink>> create(const DataPlane& plane, int64_t slot_bytes,
                                                  size_t slots, std::function<void()> on_free = {});

  /// A slot to write rows to. None: they wait for the next rank, all of them.
  std::optional<size_t> take();
  /// The same; waits for one until `deadline`.
  std::optional<size_t> take_until(transport::TimePoint deadline);
  std::span<std::byte> memory(size_t slot);
  /// Of a slot that is not sent.
  void give_back(size_t slot);

  /// The request of a call, for the descriptor of the rows that it is about.
  using Request = std::function<std::vector<std::byte>(std::vector<std::byte> descriptor)>;
  /// Offers the first `bytes` of the slot to `next` and calls it; the slot is free when they have been fetched. `request` is
  /// asked at once; the callback comes exactly once, on the data plane's threads or this one.
  void send(size_t slot, int64_t bytes, const DataEndpoint& next, transport::CallMethod method,
            transport::TimePoint deadline, const Request& request,
            transport::CallCallback callback);

  size_t slots_in_use() const;

 private:
  struct Slots {
    std::mutex mutex;
    std::condition_variable freed;
    std::vector<size_t> free;
    std::function<void()> on_free;
    void give_back(size_t slot);
  };

  RankLink(const DataPlane& plane, int64_t slot_bytes)
      : plane_(plane), memory_(*plane.transport), slot_bytes_(slot_bytes) {}

  DataPlane plane_;
  ExportMemory memory_;
  int64_t slot_bytes_;
  size_t count_ = 0;
  Buffer buffer_;
  std::shared_ptr<Slots> slots_ = std::make_shared<Slots>();
};

}  // namespace cedar::actors
