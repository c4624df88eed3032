#include "gateway/stream_registry.h"

#include <algorithm>

#include "gateway/stream_response.h"

namespace cedar::gateway {

StreamRegistry::Key StreamRegistry::key_of(const StreamResponse& response) {
  return {response.owner(), response.id()};
}

bool StreamRegistry::add(const std::shared_ptr<StreamResponse>& response) {
  std::lock_guard lock(mutex_);
  return responses_.emplace(key_of(*response), response).second;
}

std::shared_ptr<StreamResponse> StreamRegistry::find(const KeyAccount* owner,
                                                     const std::string& id) const {
  std::lock_guard lock(mutex_);
  const auto found = responses_.find({owner, id});
  return found == responses_.end() ? nullptr : found->second;
}

void StreamRegistry::remove(const StreamResponse& response) {
  std::shared_ptr<StreamResponse> last;  // destroyed after the lock
  std::lock_guard lock(mutex_);
  const auto found = responses_.find(key_of(response));
  if (found == responses_.end() || found->second.get() != &response) return;
  last = std::move(found->second);
  responses_.erase(found);
  const auto kept = std::find_if(finished_.begin(), finished_.end(), [&](const auto& entry) {
    return entry.first == key_of(response);
  });
  if (kept != finished_.end()) {
    finished_bytes_ -= kept->second;
    finished_.erase(kept);
  }
}

void StreamRegistry::keep_finished(const StreamResponse& response, int64_t bytes) {
  std::vector<std::shared_ptr<StreamResponse>> dropped;  // destroyed after the lock
  std::lock_guard lock(mutex_);
  finished_.emplace_back(key_of(response), bytes);
  finished_bytes_ += bytes;
  while (finished_bytes_ > max_finished_bytes_) {
    const auto found = responses_.find(finished_.front().first);
    if (found != responses_.end()) {
      dropped.push_back(std::move(found->second));
      responses_.erase(found);
    }
    finished_bytes_ -= finished_.front().second;
    finished_.pop_front();
  }
}

size_t StreamRegistry::size() const {
  std::lock_guard lock(mutex_);
  return responses_.size();
}

}  // namespace cedar::gateway
