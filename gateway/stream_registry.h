#pragma once
// The WebSocket responses of a gateway by their owner and id: a lost client finds its own again here, and nobody else's.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace cedar::gateway {

class KeyAccount;
class StreamResponse;

/// Thread-safe.
class StreamRegistry {
 public:
  /// `max_finished_bytes`: events of ended responses that are kept, over all of them.
  explicit StreamRegistry(int64_t max_finished_bytes) : max_finished_bytes_(max_finished_bytes) {}

  /// False when its owner has one of that id.
  bool add(const std::shared_ptr<StreamResponse>& response);
  /// `owner`: the API key that asks; null where none is asked for.
  std::shared_ptr<StreamResponse> find(const KeyAccount* owner, const std::string& id) const;
  void remove(const StreamResponse& response);
  /// `response` has ended and holds `bytes` of events; the oldest such ones go when there are too many.
  void keep_finished(const StreamResponse& response, int64_t bytes);
  size_t size() const;

 private:
  using Key = std::pair<const KeyAccount*, std::string>;
  static Key key_of(const StreamResponse& response);

  // Connections of several io threads come here; nothing is called while it is held.
  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<StreamResponse>> responses_;
  std::deque<std::pair<Key, int64_t>> finished_;  // oldest first
  int64_t max_finished_bytes_;
  int64_t finished_bytes_ = 0;
};

}  // namespace cedar::gateway
