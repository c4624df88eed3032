#pragma once
// The producer's side: requests for parts are checked against regions and leases and answered with bulk data.
// Progress thread only.

#include <unordered_map>

#include "transport/link.h"
#include "transport/messages.h"
#include "transport/options.h"
#include "transport/region_book.h"

namespace cedar::transport {

class Server {
 public:
  /// All of them outlive the server.
  Server(const TransportOptions& options, Link& link, RegionBook& book, TransportStats& stats);

  void request(PeerId peer, const PartRequest& message, TimePoint now);
  void confirm(PeerId peer, const Confirm& message, TimePoint now);
  void release(const Release& message);
  void peer_lost(PeerId peer) { serving_.erase(peer); }

 private:
  Status check(uint64_t owner_generation);
  void serve(PeerId peer, const PartRequest& message, std::vector<ConstSegment> segments);

  const TransportOptions& options_;
  Link& link_;
  RegionBook& book_;
  TransportStats& stats_;
  std::unordered_map<PeerId, uint32_t> serving_;  // parts being sent
};

}  // namespace cedar::transport
