#pragma once
// What a back end owes the room: connections, small messages, bulk data into memory that the receiver names, remote reads.
// Protocol, windows, deadlines and leases are above it, once for all back ends. Private to this room and to test doubles.
//
// Threads: one progress thread calls everything here after start(), and every event and completion comes from inside
// progress() on it, never from inside the call that started the operation.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/types.h"

namespace cedar::transport {

struct Segment {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
};
struct ConstSegment {
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
};

/// Which part of which pull bulk data belongs to.
struct DataHeader {
  TransferId transfer;
  uint32_t part = 0;
};

class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  virtual void on_open(PeerId peer, bool accepted) = 0;
  virtual void on_message(PeerId peer, std::span<const std::byte> bytes) = 0;
  /// Where `bytes` of data go; no segments: nowhere. Segments given are filled until on_data_done.
  virtual std::vector<Segment> on_data(PeerId peer, const DataHeader& header, uint64_t bytes) = 0;
  virtual void on_data_done(PeerId peer, const DataHeader& header, Status status) = 0;
  /// The connection broke; nothing more will arrive. Answer with close().
  virtual void on_down(PeerId peer, const Error& error) = 0;
  /// After close(), when every completion and on_data_done of the peer has been delivered.
  virtual void on_closed(PeerId peer) = 0;
  /// A message came for a connection that is no more.
  virtual void on_late() = 0;
};

struct LinkRegion {
  MemoryBlock memory;
  std::vector<std::byte> key;
  uint64_t handle = 0;  // the link's own
};

class Link {
 public:
  virtual ~Link() = default;

  /// Opens the listener. `events` outlives the link's last progress().
  virtual Status start(LinkEvents& events, const std::string& host, uint16_t port) = 0;
  virtual uint16_t listen_port() const = 0;
  /// Closes the listener; connections stay.
  virtual void stop_listening() = 0;

  /// on_open or on_down follows.
  virtual Result<PeerId> connect(const std::string& host, uint16_t port) = 0;
  /// Abandons what is on its way; on_closed follows. Unknown peers are ignored.
  virtual void close(PeerId peer) = 0;
  virtual std::string lanes(PeerId peer) const = 0;

  /// In order per peer. For an unknown peer `done` reports unavailable; so for all operations.
  virtual void send(PeerId peer, std::vector<std::byte> bytes, Completion done) = 0;
  /// The segments stay readable until `done`.
  virtual void send_data(PeerId peer, const DataHeader& header, std::vector<ConstSegment> segments,
                         Completion done) = 0;
  /// True where reading the region with this key needs no help of its owner's processor.
  virtual bool can_get(PeerId peer, std::span<const std::byte> key) = 0;
  /// REQUIRES: can_get(peer, key). Reads `target.bytes` from `offset` of the region.
  virtual void get(PeerId peer, std::span<const std::byte> key, uint64_t offset, Segment target,
                   Completion done) = 0;
  /// The region's first byte, when it lies in this address space and lives. Any thread.
  virtual const std::byte* peek(std::span<const std::byte> key) const = 0;

  /// memory.data null: allocates. Errors: as Transport::register_memory.
  virtual Result<LinkRegion> map(const MemoryBlock& memory) = 0;
  virtual void unmap(const LinkRegion& region) = 0;

  /// Events handled; 0 when there is nothing to do.
  virtual size_t progress() = 0;
  /// Readable when progress() may have work, once arm() has returned true.
  virtual int event_fd() const = 0;
  /// False: there is work, call progress() first.
  virtual bool arm() = 0;
};

}  // namespace cedar::transport
