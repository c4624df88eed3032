#pragma once
// Which rows to read next: chunks over all prompts, shortest remaining first with ageing.

#include <cstdint>
#include <map>
#include <vector>

#include "engine/prefill_chunk.h"
#include "engine/prefill_engine.h"

namespace cedar::engine {

/// One thread.
class PrefillQueue {
 public:
  explicit PrefillQueue(const model::ModelConfig& config) : config_(config) {}

  /// A request with cached blocks is not read before resume(). A chunk of its rows ends at `stop`, if not 0.
  void add(PrefillRequest request, Position stop = 0);
  /// Reads a prompt from position `start` on. REQUIRES: contains(id).
  void resume(RequestId id, Position start, Position stop = 0);
  bool contains(RequestId id) const { return prompts_.contains(id); }
  /// Unknown ids are ignored.
  void remove(RequestId id) { prompts_.erase(id); }

  struct Next {
    PrefillChunk chunk;  // no parts: nothing is left to read
    ChunkImages images;
  };
  /// At most `budget` rows, which count as read from now on.
  Next next(int64_t budget);
  /// What next() would give now.
  PrefillChunk peek(int64_t budget) const;

  /// Whether every row has been given out of the prompts that can be read.
  bool idle() const;
  int64_t rows_left() const;
  int32_t prompts() const { return static_cast<int32_t>(prompts_.size()); }

 private:
  struct Prompt {
    PrefillRequest request;
    Position given = 0;
    Position stop = 0;
    bool held = false;
    int32_t waited = 0;  // chunks without a row
    int64_t left() const { return static_cast<Position>(request.tokens.size()) - given; }
    int64_t next_rows() const { return given < stop ? stop - given : left(); }
    bool can_go_on() const { return left() > 0 && !held; }
  };

  struct Choice {
    RequestId id;
    int64_t rows = 0;
  };
  std::vector<Choice> choose(int64_t budget) const;
  PrefillRows rows_of(const Prompt& prompt, int64_t rows) const;

  const model::ModelConfig& config_;
  std::map<RequestId, Prompt> prompts_;
};

}  // namespace cedar::engine
