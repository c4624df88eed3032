#pragma once
// What the stage actors drive. In the product these are the engines of engine/; tests put in engines that
// wait, fail or throw on command.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/result.h"
#include "engine/decode_engine.h"
#include "engine/prefill_engine.h"

namespace cedar::actors {

/// As engine::PrefillEngine.
class EncoderEngine {
 public:
  virtual ~EncoderEngine() = default;
  virtual Status submit(engine::PrefillRequest request) = 0;
  virtual bool idle() const = 0;
  virtual Result<std::vector<engine::PrefillEvent>> step() = 0;
  virtual std::span<const std::byte> block(RequestId id, int64_t index) const = 0;
  // Of prompts whose first blocks are known. An engine that computes everything has no use for them.
  virtual int64_t block_bytes() const { return 0; }
  virtual int64_t usable_blocks(Position, int64_t, Position) const { return 0; }
  virtual Status import_block(RequestId, int64_t, std::span<const std::byte>) {
    return make_error(Errc::unsupported, "this engine computes everything");
  }
  virtual Status import_windows(RequestId, engine::Handoff) {
    return make_error(Errc::unsupported, "this engine computes everything");
  }
  virtual Status resume(RequestId, int64_t) {
    return make_error(Errc::unsupported, "this engine computes everything");
  }
  /// An engine may keep none; then no event tells of any.
  virtual Result<engine::Handoff> take_windows(RequestId) {
    return make_error(Errc::not_found, "this engine keeps no windows");
  }
  virtual Result<engine::Handoff> take_handoff(RequestId id) = 0;
  virtual int64_t max_handoff_bytes() const = 0;
  virtual void release(RequestId id) = 0;
  virtual engine::PrefillLoad load() const = 0;
};

/// As engine::DecodeEngine.
class DecoderEngine {
 public:
  virtual ~DecoderEngine() = default;
  virtual Status reserve(engine::DecodeRequest request) = 0;
  virtual Status import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) = 0;
  virtual Status start(RequestId id, engine::Handoff handoff) = 0;
  virtual void cancel(RequestId id) = 0;
  /// An engine may never call it.
  virtual void on_block(engine::DecodeEngine::BlockSink) {}
  virtual int64_t block_bytes() const = 0;
  virtual int64_t max_handoff_bytes() const = 0;
  virtual bool idle() const = 0;
  virtual Result<std::vector<engine::TokenEvent>> step() = 0;
  /// Of the last step; an engine that cannot tell says zeros.
  virtual engine::StepStats last_step() const { return {}; }
  virtual engine::DecodeLoad load() const = 0;
};

/// Makes the engine of a stage actor, on the actor's thread, each time the stage starts.
using EncoderEngineFactory = std::function<Result<std::unique_ptr<EncoderEngine>>()>;
using DecoderEngineFactory = std::function<Result<std::unique_ptr<DecoderEngine>>()>;

std::unique_ptr<EncoderEngine> as_stage_engine(std::unique_ptr<engine::PrefillEngine> engine);
std::unique_ptr<DecoderEngine> as_stage_engine(std::unique_ptr<engine::DecodeEngine> engine);

}  // namespace cedar::actors
