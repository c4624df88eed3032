#pragma once
// What source layers hand to later layers within one step, keyed by the layer that owns it. Reading a value
// that its owner has not published in this step is an error: there is no "current" slot (spec/ced.md 6).

#include <cstdint>
#include <map>

#include "core/ids.h"
#include "core/result.h"
#include "kernels/paged_rows.h"

namespace cedar::engine {

struct SharedKv {
  kernels::PagedRows main;
  kernels::PagedRows index;
  int64_t ratio = 1;
};

struct SharedTopk {
  const int32_t* indices = nullptr;  // [rows, k], ascending, kNoIndex past the end
  int64_t k = 0;
};

struct SharedCandidates {
  const uint32_t* mask = nullptr;  // [rows, stride] bit mask over global rows
  int64_t stride = 0;              // words
};

class SharedAttention {
 public:
  void publish(LayerId owner, const SharedKv& kv) { kv_[owner] = kv; }
  void publish(LayerId owner, const SharedTopk& topk) { topk_[owner] = topk; }
  void publish(LayerId owner, const SharedCandidates& pool) { candidates_[owner] = pool; }

  /// For verification: every reader of `owner`, the owner included, gets this value whatever the owner
  /// publishes.
  void pin(LayerId owner, const SharedTopk& topk) { pinned_topk_[owner] = topk; }
  void pin(LayerId owner, const SharedCandidates& pool) { pinned_candidates_[owner] = pool; }

  /// Errors: internal, naming reader and owner.
  Result<SharedKv> kv(LayerId reader, LayerId owner) const { return get(kv_, "KV", reader, owner); }
  Result<SharedTopk> topk(LayerId reader, LayerId owner) const {
    const auto pinned = pinned_topk_.find(owner);
    if (pinned != pinned_topk_.end()) return pinned->second;
    return get(topk_, "top-k list", reader, owner);
  }
  Result<SharedCandidates> candidates(LayerId reader, LayerId owner) const {
    const auto pinned = pinned_candidates_.find(owner);
    if (pinned != pinned_candidates_.end()) return pinned->second;
    return get(candidates_, "candidate pool", reader, owner);
  }

 private:
  template <class T>
  static Result<T> get(const std::map<LayerId, T>& values, const char* what, LayerId reader,
                       LayerId owner) {
    const auto found = values.find(owner);
    if (found == values.end()) {
      return make_error(Errc::internal, "layer " + std::to_string(reader) + " reads the " + what +
                                            " of layer " + std::to_string(owner) +
                                            ", which has not published one in this step");
    }
    return found->second;
  }

  std::map<LayerId, SharedKv> kv_;
  std::map<LayerId, SharedTopk> topk_;
  std::map<LayerId, SharedCandidates> candidates_;
  std::map<LayerId, SharedTopk> pinned_topk_;
  std::map<LayerId, SharedCandidates> pinned_candidates_;
};

}  // namespace cedar::engine
