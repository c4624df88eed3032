#pragma once
// The door to the actors for rooms that do not know them: no CAF type appears here. Submit a request with
// a sink, get its events, cancel it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "actors/engram_counts.h"
#include "core/ids.h"
#include "core/result.h"
#include "engine/decode_engine.h"
#include "engine/prefill_engine.h"

namespace cedar::actors {

/// One sequence to read and to continue.
struct GenerateRequest {
  engine::DecodeRequest decode;  // `id` is set by submit()
  std::vector<engine::ImageRows> images;
  std::chrono::milliseconds deadline{600000};  // from submit() to the last token, waiting included
  int32_t priority = 0;                        // lower goes first while waiting for room
  /// Keeps cached prefixes of tenants apart: only requests of the same salt share them.
  std::string cache_salt;
};

/// The request waits for room; `position` requests go before it.
struct QueuedEvent {
  int64_t position = 0;
};
/// The encoder has read `computed` of `total` prompt tokens; 0 when the decoder has made room and it begins.
struct PrefillEvent {
  int64_t computed = 0;
  int64_t total = 0;
};
/// How an encoder came by its windows behind cached blocks: none were needed, taken over as they had been, or rebuilt by a
/// replay (engine::resume_start).
enum class ResumeKind : uint8_t { none, windows, bounded, exact };

/// The prompt has been read; `cached` of its tokens came from the cache.
struct PromptReadEvent {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // < prompt_tokens
  int64_t disk_tokens = 0;    // of the cached ones, brought from a disk for this request
  ResumeKind resume = ResumeKind::none;
  int64_t replayed_tokens = 0;  // cached ones that were computed again for their windows
};
/// The decoder has all that the encoder computed and replays the end of the prompt.
struct ReplayEvent {};
/// Tokens in output order.
struct TokensEvent {
  std::vector<engine::TokenEvent> tokens;
};
/// The last event of every request, exactly once. `error` is set when `reason` is failed.
struct FinishedEvent {
  engine::FinishReason reason = engine::FinishReason::stop;
  std::optional<Error> error;
};

using StreamEvent = std::variant<QueuedEvent, PrefillEvent, PromptReadEvent, ReplayEvent,
                                 TokensEvent, FinishedEvent>;

/// Receives the events of one request, in order, from changing threads but never two at a time. Must not
/// block and must not throw.
class StreamSink {
 public:
  virtual ~StreamSink() = default;
  virtual void on_event(StreamEvent&& event) = 0;
};

/// A moment's view; the numbers need not belong to the same instant.
struct Stats {
  bool ready = false;  // every stage is up and requests are accepted
  int64_t queued = 0;
  int64_t running = 0;
  int64_t encoder_requests = 0;
  int64_t encoder_queued_tokens = 0;
  int64_t encoder_free_blocks = 0;
  int64_t decoder_sequences = 0;
  int64_t decoder_free_blocks = 0;
  int64_t decoder_total_blocks = 0;
  EngramCounts engram;       // of stages that take rows from services
  int64_t cache_blocks = 0;  // of the cache in this process
  int64_t cache_bytes = 0;
  int64_t live_actors = 0;
  std::chrono::milliseconds stalled{0};  // requests wait, and none was let in for so long
};

/// A request under way, as an operator may see it.
struct RequestInfo {
  RequestId id;
  std::string_view phase;  // monitoring::Phase, by name
  std::chrono::milliseconds age{0};
  std::chrono::milliseconds in_phase{0};
  int64_t prompt_tokens = 0;
  int64_t read_tokens = 0;  // of the prompt
  int64_t written_tokens = 0;
  std::string encoder,
      decoder;  // host:port of their data planes; empty: not chosen, or of this process
};

/// All methods may be called from any thread and return at once.
class Client {
 public:
  virtual ~Client() = default;
  /// Failures, too, reach the sink: overloaded (the queue is full), context_too_long, unavailable (a stage
  /// is missing, or the system stops), deadline_exceeded, invalid_argument, internal.
  virtual RequestId submit(GenerateRequest request, std::shared_ptr<StreamSink> sink) = 0;
  /// The sink gets FinishedEvent{cancelled} unless the request has ended. Unknown ids are ignored.
  virtual void cancel(RequestId id) = 0;
  virtual Stats stats() const = 0;
  /// The oldest first.
  virtual std::vector<RequestInfo> requests() const { return {}; }
};

}  // namespace cedar::actors
