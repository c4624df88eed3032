#include "actors/prefix_lookups.h"

#include <algorithm>
#include <utility>

namespace cedar::actors {
namespace {

/// Half of what the store takes at a time (SegmentStoreOptions::max_reads), and enough to keep a disk busy.
constexpr size_t kMostReads = 128;

}  // namespace

size_t PrefixLookups::known(std::span<const model::BlockKey> keys) const {
  size_t count = 0;
  while (count < keys.size()) {
    if (tier_.has(keys[count])) {
      ++count;
      continue;
    }
    const int64_t on_disk = disk_.prefix(keys.subspan(count));
    if (on_disk == 0) break;
    count += static_cast<size_t>(on_disk);
  }
  return count;
}

uint64_t PrefixLookups::begin(std::span<const model::BlockKey> keys) {
  const uint64_t id = ++last_number_;
  Lookup& lookup = lookups_[id];
  const size_t count = known(keys);
  // First what is here, so that what is read does not push it out.
  std::vector<bool> here;
  for (size_t i = 0; i < count; ++i) {
    here.push_back(tier_.has(keys[i]));
    lookup.keys.push_back(keys[i]);
    lookup.slots.push_back(here[i] ? tier_.pin(keys[i]) : -1);
  }
  lookup.from_disk.resize(count, false);
  for (size_t i = 0; i < count; ++i) {
    if (here[i]) {
      if (loads_.count(keys[i]) != 0) wait_for(id, lookup, i);
    } else if (!place(id, lookup, i)) {
      shorten(id, lookup, i);
      break;
    }
  }
  pump();
  return id;
}

bool PrefixLookups::place(uint64_t id, Lookup& lookup, size_t index) {
  const model::BlockKey& key = lookup.keys[index];
  // A second time in one prompt, which keys of a chain never are.
  if (tier_.has(key)) return false;
  const model::BlockKey parent = index > 0 ? lookup.keys[index - 1] : model::BlockKey{};
  const auto slot = tier_.store(key, parent, static_cast<int64_t>(index), true);
  if (!slot) return false;
  tier_.pin(key);  // for the read
  loads_[key].slot = *slot;
  queue_.push_back(key);
  lookup.slots[index] = tier_.pin(key);
  wait_for(id, lookup, index);
  return true;
}

void PrefixLookups::wait_for(uint64_t id, Lookup& lookup, size_t index) {
  loads_.at(lookup.keys[index]).lookups.emplace(id, index);
  lookup.missing.insert(index);
  lookup.from_disk[index] = true;
}

void PrefixLookups::shorten(uint64_t id, Lookup& lookup, size_t count) {
  for (size_t i = count; i < lookup.keys.size(); ++i) {
    const model::BlockKey& key = lookup.keys[i];
    if (lookup.slots[i] >= 0) tier_.unpin(key);
    if (lookup.missing.erase(i) == 0) continue;
    const auto load = loads_.find(key);
    if (load == loads_.end()) continue;
    load->second.lookups.erase(id);
    if (load->second.number != 0 || !load->second.lookups.empty()) continue;
    // Nobody wants it any more, and nobody has begun.
    tier_.unpin(key);
    tier_.forget(key);
    loads_.erase(load);
  }
  lookup.keys.resize(count);
  lookup.slots.resize(count);
  lookup.from_disk.resize(count);
}

void PrefixLookups::pump() {
  while (!queue_.empty() && reads_.size() < kMostReads) {
    const model::BlockKey key = queue_.front();
    queue_.pop_front();
    const auto load = loads_.find(key);
    if (load == loads_.end() || load->second.number != 0) continue;
    load->second.number = ++last_number_;
    reads_.emplace(load->second.number, key);
    read_(load->second.number, key, load->second.slot);
  }
}

PrefixLookups::Found PrefixLookups::take(uint64_t id) {
  const auto at = lookups_.find(id);
  if (at == lookups_.end()) return {};
  Lookup& lookup = at->second;
  if (!lookup.missing.empty()) shorten(id, lookup, *lookup.missing.begin());
  Found found{std::move(lookup.keys), std::move(lookup.slots),
              std::count(lookup.from_disk.begin(), lookup.from_disk.end(), true)};
  lookups_.erase(at);
  pump();
  return found;
}

std::vector<uint64_t> PrefixLookups::read_ended(uint64_t number, const Status& status) {
  const auto read = reads_.find(number);
  if (read == reads_.end()) return {};
  const model::BlockKey key = read->second;
  reads_.erase(read);
  const Load load = std::move(loads_.at(key));
  loads_.erase(key);
  std::vector<uint64_t> complete;
  for (const auto& [id, index] : load.lookups) {
    Lookup& lookup = lookups_.at(id);
    lookup.missing.erase(index);
    if (!status) shorten(id, lookup, index);
    if (lookup.missing.empty()) complete.push_back(id);
  }
  tier_.unpin(key);
  if (!status) tier_.forget(key);
  pump();
  return complete;
}

}  // namespace cedar::actors
