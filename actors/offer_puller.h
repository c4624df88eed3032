#pragma once
// The fetching side of the data plane: what others offer comes into staging memory of fixed size, and says when it is
// there. What does not fit waits in order, so a slow decoder costs memory nowhere.
//
// Slots of a fetch that was dropped stay out of use until the transport has called back, because until then its writer may
// still write (field report B03). A lease is released when everything of it was fetched or dropped.
//
// One thread, the stage's, except for the handlers, which come from the transport's and only pass a message on.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/data_plane.h"
#include "actors/export_memory.h"
#include "actors/messages.h"
#include "monitoring/metrics.h"
#include "monitoring/trace.h"

namespace cedar::actors {

struct OfferPullerOptions {
  int64_t block_bytes = 0;
  int64_t state_bytes = 0;  // at most
  size_t block_slots = 128;
  size_t state_slots = 2;
  size_t pull_blocks = 32;  // at most so many in one pull, so that imports begin before all is here
  std::chrono::milliseconds connect_timeout{5000};
  std::chrono::milliseconds pull_timeout{
      10000};                                // of one pull; the request's deadline bounds it, too
  std::shared_ptr<monitoring::Trace> trace;  // null: none
  std::shared_ptr<monitoring::Metrics> metrics;  // null: none
};

/// Ranges to fetch for one hand-off.
struct Fetch {
  Attempt attempt;
  transport::RegionDescriptor source;
  DataEndpoint owner;
  std::vector<int64_t> blocks;  // index of each range; empty: the one range is the state
  transport::TimePoint deadline;
  /// Where the state goes; no region: into a slot of the puller's. Nobody else may write there until it has arrived or the
  /// fetch has failed, and none who drops a fetch may use the place again.
  struct Target {
    std::shared_ptr<ExportRegion> region;
    int64_t offset = 0;
  };
  Target target;
};

class OfferPuller {
 public:
  /// The bytes are valid during the call. Calls may drop hand-offs.
  class Receiver {
   public:
    virtual ~Receiver() = default;
    virtual void block_arrived(const Attempt& attempt, int64_t index,
                               std::span<const std::byte> bytes) = 0;
    virtual void state_arrived(const Attempt& attempt, std::span<const std::byte> bytes) = 0;
    /// Everything else of this attempt has been dropped.
    virtual void fetch_failed(const Attempt& attempt, const Error& error) = 0;
  };
  struct Handlers {
    std::function<void(uint64_t pull, const Status&)> pulled;
    std::function<void(const DataEndpoint&, const Status&)> connected;
  };

  OfferPuller(transport::Transport& transport, const OfferPullerOptions& options,
              Receiver& receiver, Handlers handlers);
  /// Gives up everything; pulls under way end by themselves.
  ~OfferPuller();
  OfferPuller(const OfferPuller&) = delete;
  OfferPuller& operator=(const OfferPuller&) = delete;

  /// Begins a handshake if there is none, so that the first fetch need not wait for it.
  void connect(const DataEndpoint& owner);
  void add(Fetch fetch);
  /// Forgets what has not arrived for this attempt; nothing of it is received any more.
  void drop(const Attempt& attempt);

  // What the handlers passed on.
  void pulled(uint64_t pull, const Status& status);
  void connected(const DataEndpoint& owner, const Status& status);

  /// Slots neither free nor waiting for the receiver: being written, or quarantined.
  size_t slots_in_use() const;
  size_t waiting() const { return fetches_.size(); }

 private:
  struct Part {
    size_t first = 0, count = 0;  // ranges of the source
  };
  struct Active {
    Fetch fetch;
    std::deque<Part> todo;
    size_t running = 0;      // pulls
    uint64_t lost_link = 0;  // that took pulls of this with it; once more over another one
  };
  struct Pull {
    uint64_t fetch = 0;  // may be gone
    uint64_t link = 0;
    Part part;
    std::vector<size_t> slots;
    Fetch::Target target;  // instead of slots
    /// The fetch has failed, which its receiver hears when nobody writes to the target any more.
    std::optional<Error> failed;
    bool state = false;
    transport::TransferId transfer;
    transport::TimePoint begin;
    // What the trace says of it, when its fetch may be gone.
    Attempt attempt;
    uint64_t bytes = 0;
  };
  /// Slots of one size in one region.
  struct Slots {
    std::shared_ptr<ExportRegion> region;  // made when first needed
    int64_t bytes = 0;
    size_t count = 0;
    std::vector<size_t> free;
  };
  struct Link {
    uint64_t number = 0;  // every connection has its own
    bool up = false;
  };
  using Fetches = std::map<uint64_t, Active>;

  Status prepare(Slots& slots);
  void pump();
  /// False: wait for another pull to end.
  bool issue(uint64_t id, Active& active);
  void deliver(const Pull& pull);
  void fail(uint64_t fetch, const Error& error);
  void erase(Fetches::iterator at);

  transport::Transport& transport_;
  const OfferPullerOptions options_;
  Receiver& receiver_;
  const Handlers handlers_;
  Slots blocks_, states_;
  uint64_t last_id_ = 0;
  Fetches fetches_;  // in order
  std::map<uint64_t, Pull> pulls_;
  std::map<std::pair<uint32_t, uint64_t>, Link>
      links_;  // by node and generation, of its latest life
};

}  // namespace cedar::actors
