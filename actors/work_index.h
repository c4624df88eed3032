#pragma once
// Whose prompts an encoder reads: works by attempt and by session. A session is watched as long as it has one of them.

#include <caf/actor_addr.hpp>
#include <caf/fwd.hpp>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "actors/messages.h"

namespace cedar::actors {

/// One thread, the stage's.
class WorkIndex {
 public:
  /// `stage` watches the sessions, and outlives this.
  explicit WorkIndex(caf::local_actor& stage) : stage_(stage) {}

  /// False: the attempt has a work already.
  bool add(const BeginPrefill& begin, RequestId work);
  /// REQUIRES: added.
  void remove(const BeginPrefill& begin, RequestId work);

  std::optional<RequestId> find(const Attempt& attempt) const;
  std::vector<RequestId> of(const caf::actor_addr& session) const;

 private:
  caf::local_actor& stage_;
  std::map<Attempt, RequestId> attempts_;
  std::map<caf::actor_addr, std::set<RequestId>> sessions_;
};

}  // namespace cedar::actors
