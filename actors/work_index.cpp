#include "actors/work_index.h"

#include <caf/local_actor.hpp>

namespace cedar::actors {

bool WorkIndex::add(const BeginPrefill& begin, RequestId work) {
  if (!attempts_.emplace(begin.attempt, work).second) return false;
  std::set<RequestId>& works = sessions_[begin.session.address()];
  if (works.empty()) stage_.monitor(begin.session);
  works.insert(work);
  return true;
}

void WorkIndex::remove(const BeginPrefill& begin, RequestId work) {
  attempts_.erase(begin.attempt);
  const auto session = sessions_.find(begin.session.address());
  session->second.erase(work);
  if (!session->second.empty()) return;
  stage_.demonitor(session->first);
  sessions_.erase(session);
}

std::optional<RequestId> WorkIndex::find(const Attempt& attempt) const {
  const auto known = attempts_.find(attempt);
  if (known == attempts_.end()) return std::nullopt;
  return known->second;
}

std::vector<RequestId> WorkIndex::of(const caf::actor_addr& session) const {
  const auto known = sessions_.find(session);
  if (known == sessions_.end()) return {};
  return {known->second.begin(), known->second.end()};
}

}  // namespace cedar::actors
