#include "transport/server.h"

#include <algorithm>

namespace cedar::transport {
namespace {

// A consumer's window is its own choice; this bounds what a wrong one can pile up here.
constexpr uint32_t kServingLimit = 4096;

}  // namespace

Server::Server(const TransportOptions& options, Link& link, RegionBook& book, TransportStats& stats)
    : options_(options), link_(link), book_(book), stats_(stats) {}

Status Server::check(uint64_t owner_generation) {
  if (owner_generation == options_.identity.generation) return {};
  ++stats_.stale_generations;
  return make_error(Errc::stale_generation, "asked for generation " +
                                                std::to_string(owner_generation) + ", this is " +
                                                to_string(options_.identity));
}

void Server::request(PeerId peer, const PartRequest& message, TimePoint now) {
  Status allowed = check(message.owner_generation);
  if (allowed && serving_[peer] >= kServingLimit) {
    allowed = make_error(Errc::overloaded, std::to_string(kServingLimit) + " parts are being sent");
  }
  if (allowed && message.ranges.empty())
    allowed = make_error(Errc::invalid_argument, "request without ranges");
  if (allowed) {
    auto segments = book_.start_reading(message.region, message.lease, message.ranges, now);
    if (segments) {
      serve(peer, message, std::move(*segments));
      return;
    }
    allowed = segments.error();
  }
  ++stats_.requests_refused[static_cast<size_t>(allowed.error().code)];
  link_.send(peer, encode(PartRefused{message.transfer, message.part, allowed.error()}), {});
}

void Server::serve(PeerId peer, const PartRequest& message, std::vector<ConstSegment> segments) {
  uint64_t bytes = 0;
  for (const ConstSegment& segment : segments) bytes += segment.bytes;
  ++serving_[peer];
  auto sent = [this, peer, bytes, header = DataHeader{message.transfer, message.part},
               region = message.region, lease = message.lease](const Status& status) {
    book_.finish_reading(region, lease);
    const auto serving = serving_.find(peer);
    if (serving == serving_.end()) return;  // the connection has ended
    --serving->second;
    if (status) {
      ++stats_.parts_served;
      stats_.bytes_served += bytes;
    } else {
      ++stats_.requests_refused[static_cast<size_t>(status.error().code)];
      link_.send(peer, encode(PartRefused{header.transfer, header.part, status.error()}), {});
    }
  };
  link_.send_data(peer, DataHeader{message.transfer, message.part}, std::move(segments), sent);
}

void Server::confirm(PeerId peer, const Confirm& message, TimePoint now) {
  Status alive = check(message.owner_generation);
  if (alive) alive = book_.check(message.region, message.lease, message.ranges, now);
  Confirmed reply{message.transfer, Error{Errc::ok, {}}};
  if (!alive) {
    reply.error = alive.error();
    ++stats_.requests_refused[static_cast<size_t>(alive.error().code)];
  } else if (message.release) {
    book_.end(message.lease, LeaseEnd::released);
  }
  link_.send(peer, encode(reply), {});
}

void Server::release(const Release& message) {
  if (check(message.owner_generation)) book_.end(message.lease, LeaseEnd::released);
}

}  // namespace cedar::transport
