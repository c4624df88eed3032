#pragma once
// A look at what a forward pass decided, for `cedar verify` and traces. Host pointers,
// valid during the call.

#include <cstdint>

#include "core/float_formats.h"
#include "core/ids.h"

namespace cedar::engine {

class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  /// Scores before candidate filtering, rows [row_begin, row_begin + rows) of the step.
  virtual void on_scores(LayerId /*layer*/, const float* /*scores*/, int64_t /*stride*/,
                         int64_t /*row_begin*/, int64_t /*rows*/) {}
  virtual void on_topk(LayerId /*layer*/, const int32_t* /*indices*/, int64_t /*k*/,
                       int64_t /*rows*/) {}
  virtual void on_candidates(LayerId /*layer*/, const uint32_t* /*mask*/, int64_t /*stride*/,
                             int64_t /*rows*/) {}
  virtual void on_experts(LayerId /*layer*/, const int32_t* /*experts*/, const float* /*weights*/,
                          int64_t /*rows*/, int64_t /*top*/) {}
  virtual void on_layer(LayerId /*layer*/, const Bf16* /*x*/, const float* /*pre*/,
                        int64_t /*rows*/) {}
};

}  // namespace cedar::engine
