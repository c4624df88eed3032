#include "gateway/detached_answers.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "gateway/stream_response.h"

namespace cedar::gateway {

namespace {

using Responses = std::vector<std::shared_ptr<StreamResponse>>;

Responses take_oldest(std::deque<std::shared_ptr<StreamResponse>>& from, int64_t count) {
  const auto end = from.begin() + std::clamp<int64_t>(count, 0, static_cast<int64_t>(from.size()));
  Responses taken(std::make_move_iterator(from.begin()), std::make_move_iterator(end));
  from.erase(from.begin(), end);
  return taken;
}

void give_up(const Responses& responses) {
  for (const auto& response : responses) {
    response->post([](StreamResponse& r) { r.give_up(); });
  }
}

}  // namespace

void DetachedAnswers::add(const std::shared_ptr<StreamResponse>& response) {
  Responses oldest;
  {
    std::lock_guard lock(mutex_);
    responses_.push_back(response);
    oldest = take_oldest(responses_, static_cast<int64_t>(responses_.size()) - max_);
  }
  give_up(oldest);
}

void DetachedAnswers::remove(const StreamResponse& response) {
  std::shared_ptr<StreamResponse> last;  // destroyed after the lock
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(responses_.begin(), responses_.end(),
                                  [&](const auto& entry) { return entry.get() == &response; });
  if (found == responses_.end()) return;
  last = std::move(*found);
  responses_.erase(found);
}

void DetachedAnswers::give_way(int64_t places) {
  Responses oldest;
  {
    std::lock_guard lock(mutex_);
    oldest = take_oldest(responses_, places);
  }
  give_up(oldest);
}

}  // namespace cedar::gateway
