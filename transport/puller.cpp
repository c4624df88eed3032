#include "transport/puller.h"

#include <algorithm>
#include <cstring>

#include "core/crc32c.h"

namespace cedar::transport {

Puller::Puller(const TransportOptions& options, Link& link, PeerTable& peers, RegionBook& book,
               TransportStats& stats)
    : options_(options), link_(link), peers_(peers), book_(book), stats_(stats) {}

void Puller::start(TransferId transfer, PullRequest request, Completion callback, TimePoint now) {
  now_ = now;
  ++stats_.pulls_started;
  ++stats_.pulls_unfinished;
  const auto at = pulls_.emplace(transfer, Pull{}).first;
  Pull& pull = at->second;
  pull.request = std::move(request);
  pull.callback = std::move(callback);
  pull.started = now;
  if (const Status prepared = prepare(pull); !prepared) {
    finish(at, prepared);
    return;
  }
  if (pull.request.source.owner == options_.identity) {
    finish(at, copy_own(pull));
    return;
  }
  deadlines_.emplace(pull.request.deadline, transfer);
  windows_[pull.peer].waiting.push_back(transfer);
  pump(pull.peer);
}

Status Puller::prepare(Pull& pull) {
  const RegionDescriptor& source = pull.request.source;
  const auto& target = pull.request.target;
  if (source.ranges.empty() || source.ranges.size() != target.size()) {
    return make_error(Errc::invalid_argument, "target must have as many ranges as the source's " +
                                                  std::to_string(source.ranges.size()) +
                                                  " (at least 1), got " +
                                                  std::to_string(target.size()));
  }
  if (source.kind != MemoryKind::host)
    return make_error(Errc::unsupported, "source is device memory");
  if (pull.request.deadline <= now_) return make_error(Errc::deadline_exceeded, "before the start");
  const bool own = source.owner == options_.identity;
  if (!own) {
    CEDAR_TRY(pull.peer, peers_.find(source.owner));
  }
  std::vector<Piece> pieces;
  pieces.reserve(target.size());
  for (size_t i = 0; i < target.size(); ++i) {
    const ByteRange& range = source.ranges[i];
    if (range.bytes == 0)
      return make_error(Errc::invalid_argument, "source range " + std::to_string(i) + " is empty");
    CEDAR_TRY(std::byte * memory, book_.pin(target[i].region, target[i].offset, range.bytes));
    pull.targets.push_back(memory);
    pieces.push_back(Piece{range.offset, memory, range.bytes});
  }
  if (own) return {};
  pull.native = link_.can_get(pull.peer, source.key);
  pull.parts = plan_parts(pieces, options_.part_bytes, options_.part_ranges);
  pull.states.assign(pull.parts.size(), PartState::waiting);
  return {};
}

Status Puller::copy_own(const Pull& pull) {
  const RegionDescriptor& source = pull.request.source;
  CEDAR_TRY(const auto segments,
            book_.start_reading(source.region, source.lease, source.ranges, now_));
  // The target may be in the same region.
  for (size_t i = 0; i < segments.size(); ++i)
    std::memmove(pull.targets[i], segments[i].data, segments[i].bytes);
  book_.finish_reading(source.region, source.lease);
  CEDAR_CHECK_OK(verify(pull));
  if (source.lease.value != 0 && pull.request.release_lease)
    book_.end(source.lease, LeaseEnd::released);
  return {};
}

void Puller::pump(PeerId peer) {
  Window& window = windows_[peer];
  while (!window.waiting.empty()) {
    const TransferId transfer = window.waiting.front();
    const auto at = pulls_.find(transfer);
    if (at == pulls_.end() || at->second.failure ||
        at->second.next_part == at->second.parts.size()) {
      window.waiting.pop_front();
      continue;
    }
    Pull& pull = at->second;
    const auto part = static_cast<uint32_t>(pull.next_part);
    const uint64_t bytes = pull.parts[part].bytes;
    if (window.parts >= options_.window_parts || window.bytes + bytes > options_.window_bytes)
      return;
    ++pull.next_part;
    ++window.parts;
    window.bytes += bytes;
    if (pull.native) {
      get_part(transfer, pull, part);
    } else {
      request_part(transfer, pull, part);
    }
  }
}

void Puller::request_part(TransferId transfer, Pull& pull, uint32_t part) {
  PartRequest message;
  message.transfer = transfer;
  message.part = part;
  message.owner_generation = pull.request.source.owner.generation;
  message.region = pull.request.source.region;
  message.lease = pull.request.source.lease;
  for (const Piece& piece : pull.parts[part].pieces)
    message.ranges.push_back(ByteRange{piece.offset, piece.bytes, {}});
  pull.states[part] = PartState::requested;
  ++stats_.parts_requested;
  link_.send(pull.peer, encode(message), {});
}

void Puller::get_part(TransferId transfer, Pull& pull, uint32_t part) {
  pull.states[part] = PartState::moving;
  const auto left = std::make_shared<size_t>(pull.parts[part].pieces.size());
  for (const Piece& piece : pull.parts[part].pieces) {
    ++pull.moving;
    ++stats_.gets;
    link_.get(pull.peer, pull.request.source.key, piece.offset, Segment{piece.target, piece.bytes},
              [this, transfer, part, left](const Status& status) {
                piece_done(transfer, part, left, status);
              });
  }
}

void Puller::piece_done(TransferId transfer, uint32_t part, std::shared_ptr<size_t> left,
                        const Status& status) {
  const auto at = pulls_.find(transfer);
  if (at == pulls_.end()) return;
  --at->second.moving;
  if (--*left == 0) {
    leave_window(at->second, part);
    at->second.states[part] = PartState::done;
  }
  if (!status) {
    fail(at, status.error());
  } else if (at->second.failure) {
    fail(at, *at->second.failure);
  } else if (*left == 0) {
    part_done(at, part);
  }
}

void Puller::leave_window(const Pull& pull, uint32_t part) {
  const auto window = windows_.find(pull.peer);
  if (window == windows_.end()) return;
  --window->second.parts;
  window->second.bytes -= pull.parts[part].bytes;
}

void Puller::part_done(Pulls::iterator at, uint32_t part) {
  Pull& pull = at->second;
  const PeerId peer = pull.peer;
  pull.states[part] = PartState::done;
  if (++pull.done_parts == pull.parts.size()) complete(at);
  pump(peer);
}

std::vector<Segment> Puller::data(PeerId peer, const DataHeader& header, uint64_t bytes) {
  const auto at = find(peer, header.transfer);
  if (at == pulls_.end() || at->second.failure || header.part >= at->second.parts.size() ||
      at->second.states[header.part] != PartState::requested) {
    ++stats_.late_messages;
    return {};
  }
  Pull& pull = at->second;
  const Part& part = pull.parts[header.part];
  if (part.bytes != bytes) {
    ++stats_.bad_messages;
    fail(at, make_error(Errc::internal, "part of " + std::to_string(part.bytes) +
                                            " bytes came with " + std::to_string(bytes)));
    return {};
  }
  pull.states[header.part] = PartState::moving;
  ++pull.moving;
  std::vector<Segment> segments;
  segments.reserve(part.pieces.size());
  for (const Piece& piece : part.pieces) segments.push_back(Segment{piece.target, piece.bytes});
  return segments;
}

void Puller::data_done(PeerId peer, const DataHeader& header, const Status& status) {
  const auto at = find(peer, header.transfer);
  if (at == pulls_.end()) return;
  --at->second.moving;
  leave_window(at->second, header.part);
  at->second.states[header.part] = PartState::done;
  if (!status) {
    fail(at, status.error());
  } else if (at->second.failure) {
    fail(at, *at->second.failure);
  } else {
    part_done(at, header.part);
  }
}

void Puller::refused(PeerId peer, const PartRefused& message) {
  const auto at = find(peer, message.transfer);
  if (at == pulls_.end() || at->second.failure) return;
  Error error = message.error;
  if (error.code == Errc::ok) error.code = Errc::internal;
  fail(at, error);
}

void Puller::confirmed(PeerId peer, const Confirmed& message) {
  const auto at = find(peer, message.transfer);
  if (at == pulls_.end() || !at->second.confirming || at->second.failure) return;
  finish(at, message.error.code == Errc::ok ? Status{} : Status{message.error});
}

void Puller::complete(Pulls::iterator at) {
  Pull& pull = at->second;
  if (const Status verified = verify(pull); !verified) {
    fail(at, verified.error());
    return;
  }
  const RegionDescriptor& source = pull.request.source;
  const bool release = pull.request.release_lease;
  if (source.lease.value != 0 && pull.native) {
    // The owner did not see the reads: only its word that they were of what it offered and that the lease outlived them
    // makes the bytes good.
    pull.confirming = true;
    Confirm confirm{at->first, source.owner.generation, source.region, source.lease, release, {}};
    for (const ByteRange& range : source.ranges) {
      if (!confirm.ranges.empty() &&
          confirm.ranges.back().offset + confirm.ranges.back().bytes == range.offset) {
        confirm.ranges.back().bytes += range.bytes;
      } else {
        confirm.ranges.push_back({range.offset, range.bytes, {}});
      }
    }
    link_.send(pull.peer, encode(confirm), {});
    return;
  }
  if (source.lease.value != 0 && release)
    link_.send(pull.peer, encode(Release{source.owner.generation, source.lease}), {});
  finish(at, {});
}

Status Puller::verify(const Pull& pull) const {
  if (!pull.request.verify_checksums) return {};
  const auto& ranges = pull.request.source.ranges;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!ranges[i].crc32c) continue;
    const uint32_t got = crc32c({pull.targets[i], ranges[i].bytes});
    if (got != *ranges[i].crc32c) {
      return make_error(Errc::checksum_mismatch, "range " + std::to_string(i) + ": expected " +
                                                     std::to_string(*ranges[i].crc32c) + ", got " +
                                                     std::to_string(got));
    }
  }
  return {};
}

void Puller::fail(Pulls::iterator at, const Error& error) {
  Pull& pull = at->second;
  if (!pull.failure) {
    pull.failure = error;
    for (uint32_t part = 0; part < pull.next_part; ++part) {
      if (pull.states[part] != PartState::requested) continue;
      pull.states[part] = PartState::done;
      leave_window(pull, part);
    }
  }
  if (pull.moving > 0) {
    if (!pull.give_up) pull.give_up = now_ + std::chrono::milliseconds(options_.cancel_grace_ms);
    return;
  }
  const PeerId peer = pull.peer;
  finish(at, *pull.failure);
  if (windows_.count(peer) != 0) pump(peer);
}

void Puller::finish(Pulls::iterator at, const Status& status) {
  const TransferId transfer = at->first;
  Pull pull = std::move(at->second);
  pulls_.erase(at);
  const auto [first, last] = deadlines_.equal_range(pull.request.deadline);
  const auto mine = std::find_if(first, last, [&](const auto& e) { return e.second == transfer; });
  if (mine != last) deadlines_.erase(mine);
  for (size_t i = 0; i < pull.targets.size(); ++i) book_.unpin(pull.request.target[i].region);
  --stats_.pulls_unfinished;
  const Errc code = status ? Errc::ok : status.error().code;
  ++stats_.pulls_ended[static_cast<size_t>(code)];
  if (status) {
    stats_.bytes_pulled += pull.request.source.bytes();
    stats_.pull_seconds += std::chrono::duration<double>(Clock::now() - pull.started).count();
  }
  if (pull.callback) pull.callback(status);
}

void Puller::cancel(TransferId transfer, const Error& reason) {
  const auto at = pulls_.find(transfer);
  if (at != pulls_.end() && !at->second.failure) fail(at, reason);
}

void Puller::cancel_all(const Error& reason) {
  std::vector<TransferId> all;
  for (const auto& [transfer, pull] : pulls_) all.push_back(transfer);
  for (const TransferId transfer : all) cancel(transfer, reason);
}

void Puller::peer_lost(PeerId peer, const Error& reason) {
  windows_.erase(peer);
  std::vector<TransferId> lost;
  for (const auto& [transfer, pull] : pulls_) {
    if (pull.peer == peer) lost.push_back(transfer);
  }
  for (const TransferId transfer : lost) cancel(transfer, reason);
}

void Puller::tick(TimePoint now) {
  now_ = now;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const TransferId transfer = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    cancel(transfer, make_error(Errc::deadline_exceeded, "pull " + std::to_string(transfer.value)));
  }
  std::vector<PeerId> stuck;
  for (auto& [transfer, pull] : pulls_) {
    if (!pull.give_up || *pull.give_up > now) continue;
    pull.give_up.reset();
    stuck.push_back(pull.peer);
  }
  for (const PeerId peer : stuck) {
    if (!peers_.ready(peer)) continue;
    ++stats_.forced_closes;
    peers_.drop(peer, make_error(Errc::unavailable, "a transfer would not end"));
  }
}

std::optional<TimePoint> Puller::next_deadline() const {
  std::optional<TimePoint> next;
  if (!deadlines_.empty()) next = deadlines_.begin()->first;
  for (const auto& [transfer, pull] : pulls_) {
    if (pull.give_up && (!next || *pull.give_up < *next)) next = pull.give_up;
  }
  return next;
}

Puller::Pulls::iterator Puller::find(PeerId peer, TransferId transfer) {
  const auto at = pulls_.find(transfer);
  return at != pulls_.end() && at->second.peer == peer ? at : pulls_.end();
}

}  // namespace cedar::transport
