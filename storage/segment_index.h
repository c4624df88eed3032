#pragma once
// Which key lies where. No locks: the store's.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "storage/segment_file.h"

namespace cedar::storage {

/// Reads under way hold it: its bytes stay until the last of them is done.
struct Segment {
  std::unique_ptr<SegmentFile> file;
  std::vector<SlotHeader> slots;  // of what can be read; others have an empty key
  int64_t next_slot = 0;
  int64_t writes_under_way = 0;
  bool finished = false;

  uint64_t number() const { return file->header().number; }
  const SegmentShape& shape() const { return file->header().shape; }
  bool full() const { return next_slot == shape().slots; }
};

class SegmentIndex {
 public:
  struct Place {
    std::shared_ptr<Segment> segment;
    int64_t slot = 0;
  };

  void add(std::shared_ptr<Segment> segment) {
    bytes_ += segment->shape().file_bytes();
    const uint64_t number = segment->number();
    for (size_t slot = 0; slot < segment->slots.size(); ++slot) {
      const StoreKey& key = segment->slots[slot].key;
      if (key != StoreKey{}) places_[key] = {number, static_cast<int64_t>(slot)};
    }
    segments_.emplace(number, std::move(segment));
  }
  /// The value of a slot can be read from now on.
  void publish(Segment& segment, int64_t slot, const SlotHeader& header) {
    segment.slots[static_cast<size_t>(slot)] = header;
    places_[header.key] = {segment.number(), slot};
  }
  bool contains(const StoreKey& key) const { return places_.count(key) != 0; }
  std::optional<Place> find(const StoreKey& key) const {
    const auto place = places_.find(key);
    if (place == places_.end()) return std::nullopt;
    return Place{segments_.at(place->second.first), place->second.second};
  }
  /// If it still lies there.
  void forget(const StoreKey& key, const Place& place) {
    const auto known = places_.find(key);
    if (known == places_.end() || known->second.first != place.segment->number() ||
        known->second.second != place.slot) {
      return;
    }
    places_.erase(known);
    place.segment->slots[static_cast<size_t>(place.slot)].key = {};
  }
  /// Null: there is none that is finished.
  std::shared_ptr<Segment> oldest_finished() const {
    for (const auto& [number, segment] : segments_) {
      if (segment->finished) return segment;
    }
    return nullptr;
  }
  /// Values that nothing else holds are forgotten; how many, and the times at which they were written.
  std::vector<uint64_t> remove(const Segment& segment) {
    std::vector<uint64_t> written;
    for (size_t slot = 0; slot < segment.slots.size(); ++slot) {
      const auto place = places_.find(segment.slots[slot].key);
      if (place == places_.end() || place->second.first != segment.number() ||
          place->second.second != static_cast<int64_t>(slot)) {
        continue;
      }
      places_.erase(place);
      written.push_back(segment.slots[slot].written_s);
    }
    bytes_ -= segment.shape().file_bytes();
    segments_.erase(segment.number());
    return written;
  }

  std::shared_ptr<Segment> last() const {
    return segments_.empty() ? nullptr : segments_.rbegin()->second;
  }
  uint64_t last_number() const { return segments_.empty() ? 0 : segments_.rbegin()->first; }
  int64_t values() const { return static_cast<int64_t>(places_.size()); }
  int64_t segments() const { return static_cast<int64_t>(segments_.size()); }
  int64_t bytes() const { return bytes_; }

 private:
  std::map<uint64_t, std::shared_ptr<Segment>> segments_;  // by number: oldest first
  std::unordered_map<StoreKey, std::pair<uint64_t, int64_t>, HashStoreKey> places_;
  int64_t bytes_ = 0;
};

}  // namespace cedar::storage
