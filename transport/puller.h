#pragma once
// The consumer's side: pulls cut into parts, parts issued while the peer's window has room, every pull ended once.
//
// Memory rule: after a pull's callback nothing writes to its target. Parts that were requested but have not begun to arrive
// are forgotten (their data is dropped when it comes); for parts that are being written the pull waits, and if they do
// not end within the grace time the whole connection is given up, which ends them.
// Progress thread only.

#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "transport/link.h"
#include "transport/messages.h"
#include "transport/options.h"
#include "transport/part_plan.h"
#include "transport/peer_table.h"
#include "transport/region_book.h"

namespace cedar::transport {

class Puller {
 public:
  /// All of them outlive the puller.
  Puller(const TransportOptions& options, Link& link, PeerTable& peers, RegionBook& book,
         TransportStats& stats);

  void start(TransferId transfer, PullRequest request, Completion callback, TimePoint now);
  void cancel(TransferId transfer, const Error& reason);
  void cancel_all(const Error& reason);
  bool empty() const { return pulls_.empty(); }

  // From the peer.
  std::vector<Segment> data(PeerId peer, const DataHeader& header, uint64_t bytes);
  void data_done(PeerId peer, const DataHeader& header, const Status& status);
  void refused(PeerId peer, const PartRefused& message);
  void confirmed(PeerId peer, const Confirmed& message);
  void peer_lost(PeerId peer, const Error& reason);

  void tick(TimePoint now);
  std::optional<TimePoint> next_deadline() const;

 private:
  enum class PartState : uint8_t { waiting, requested, moving, done };
  struct Pull {
    PeerId peer;
    PullRequest request;
    Completion callback;
    TimePoint started;
    std::vector<std::byte*> targets;  // of each range
    std::vector<Part> parts;
    std::vector<PartState> states;
    size_t next_part = 0;
    size_t done_parts = 0;
    uint64_t moving = 0;  // operations that write to the target
    bool native = false;  // read without the owner's help
    bool confirming = false;
    std::optional<Error> failure;
    std::optional<TimePoint> give_up;  // of the connection
  };
  struct Window {
    std::deque<TransferId> waiting;
    uint64_t bytes = 0;
    uint32_t parts = 0;
  };
  using Pulls = std::unordered_map<TransferId, Pull>;

  Status prepare(Pull& pull);
  /// The source is this transport's own memory.
  Status copy_own(const Pull& pull);
  void pump(PeerId peer);
  void request_part(TransferId transfer, Pull& pull, uint32_t part);
  void get_part(TransferId transfer, Pull& pull, uint32_t part);
  void piece_done(TransferId transfer, uint32_t part, std::shared_ptr<size_t> left,
                  const Status& status);
  void leave_window(const Pull& pull, uint32_t part);
  void part_done(Pulls::iterator at, uint32_t part);
  void complete(Pulls::iterator at);
  Status verify(const Pull& pull) const;
  void fail(Pulls::iterator at, const Error& error);
  void finish(Pulls::iterator at, const Status& status);
  Pulls::iterator find(PeerId peer, TransferId transfer);

  const TransportOptions& options_;
  Link& link_;
  PeerTable& peers_;
  RegionBook& book_;
  TransportStats& stats_;
  Pulls pulls_;
  std::unordered_map<PeerId, Window> windows_;
  std::multimap<TimePoint, TransferId> deadlines_;
  TimePoint now_{};
};

}  // namespace cedar::transport
