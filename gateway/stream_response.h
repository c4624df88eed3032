#pragma once
// One response of the WebSocket protocol: numbered events of one generation (spec/api.md 6.3 and 6.4). Lives
// on the executor it was made with, also after it has moved to another connection.

#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gateway/event_log.h"
#include "gateway/frame_target.h"
#include "gateway/generation.h"

namespace cedar::gateway {

constexpr int64_t kMaxCredits = 1000000;

struct StreamResponseSetup {
  std::string response_id;
  const KeyAccount* owner =
      nullptr;                  // the only one who may resume; null where no keys are asked for
  std::string client_event_id;  // empty: none
  bool resumable = true;
  int64_t credits = 0;          // events that may be on their way; 0: no bound of the client's
  uint64_t request_digest = 0;  // equal for equal requests
};

/// A connection that wants to have the events after `last_seq`.
struct StreamClaim {
  std::shared_ptr<FrameTarget> target;
  std::string client_event_id;
  int64_t last_seq = 0;
  bool resumes = false;         // a response.resume, which takes the stream from another connection
  uint64_t request_digest = 0;  // of a repeated response.create
};

/// Every method but post() on the executor.
class StreamResponse final : public GenerationObserver,
                             public std::enable_shared_from_this<StreamResponse> {
 public:
  StreamResponse(GatewayContext& context, boost::asio::any_io_executor executor,
                 StreamResponseSetup setup, std::shared_ptr<FrameTarget> target);

  void start(PreparedRequest request, KeyUse use);
  /// `asker`: the connection that asks; only the one that has the stream may.
  void cancel(const FrameTarget* asker);
  /// The target's connection ended: by the client's own will, which cancels, or lost, which leaves
  /// detach_grace for coming back.
  void detach(const FrameTarget* target, bool client_closed);
  /// Sends the events after `last_seq` to the claim's target, then goes on live. Who knows the id may resume;
  /// a former target is told that the stream moved. A repeated create is a retry: it must bring the same
  /// request, and gets only a stream that no other connection has. What is refused gets an error event.
  void attach(StreamClaim claim);
  /// Cancels if nobody has come back.
  void give_up();
  /// The client takes `add` more events. `asker`: as in cancel().
  void grant(const FrameTarget* asker, int64_t add);
  void acknowledge(int64_t seq) { log_.acknowledge(seq); }
  /// The target has sent what it had: merged deltas may follow.
  void on_writable() { flush(); }
  /// The server stops: what waits at the end of an answer waits no longer.
  void on_stopping() { flush(); }

  /// Runs `action` on the executor; from any thread.
  template <class Action>
  void post(Action action);

  const std::string& id() const { return setup_.response_id; }
  const KeyAccount* owner() const { return setup_.owner; }
  bool ended() const { return ended_; }

  void on_queued(int64_t position) override;
  void on_prefill(int64_t computed, int64_t total) override;
  void on_prompt_read(const Usage& usage) override;
  void on_replay() override;
  void on_piece(int64_t choice, const TextPiece& piece) override;
  void on_choice_end(int64_t choice, std::string_view finish_reason) override;
  void on_end(EndStatus status, const Usage& usage, const std::optional<ApiError>& error) override;
  void on_batch_end() override;

 private:
  /// An event without its number yet. Deltas that agree in all but the text merge; between them there may be
  /// deltas of other choices only.
  struct Pending {
    std::string type;
    std::string fields;  // ,"name":value ...
    bool is_delta = false;
    std::string delta;
    std::vector<TokenReport> tokens;
    int64_t bytes = 0;  // that it holds, about
  };
  /// What was said about a choice so far.
  struct Choice {
    int64_t reasoning_bytes = 0;
    int64_t content_bytes = 0;
    bool reasoning_open = false;
    bool content_open = false;
    std::string arguments;            // of the call that is open
    std::vector<TokenReport> tokens;  // reported, not sent yet
    CallIds calls;
  };

  void add(std::string type, std::string fields);
  void add_delta(std::string type, std::string fields, Choice& choice, const std::string& text);
  /// The delta that waits with this type and these fields, and may get more text; null: none.
  Pending* waiting_delta(const std::string& type, const std::string& fields);
  /// `event`, which waits, holds so much more.
  void hold(Pending& event, int64_t bytes);
  void add_segment(int64_t index, const model::OutputSegment& segment);
  void close_text(int64_t index);
  /// The error event that answers a claim; empty: granted.
  std::string refusal(const StreamClaim& claim) const;
  /// Numbers and sends what waits, as far as the credits reach.
  void flush();
  /// Whether deltas wait because the connection wants them less often; a timer ends that.
  bool coalesces();
  /// The last event has its number: the response is kept for resuming, or forgotten.
  void settle();
  /// The client's credits do not count any more.
  void lift_credits();
  void emit(const Pending& pending);
  void stop_generation();
  void expire_after(std::chrono::milliseconds time);

  GatewayContext& context_;
  boost::asio::any_io_executor executor_;
  StreamResponseSetup setup_;
  std::shared_ptr<FrameTarget> target_;  // null while detached and after the end
  std::shared_ptr<Generation> generation_;
  EventLog log_;
  std::deque<Pending> pending_;
  std::vector<Choice> choices_;
  std::shared_ptr<const model::Tokenizer> tokenizer_;
  bool send_token_ids_ = false;
  bool send_logprobs_ = false;
  int64_t credits_ = 0;     // below zero after a resume that brought more than they allow
  bool limited_ = false;    // by credits
  int64_t held_bytes_ = 0;  // of pending_, about
  bool too_slow_ = false;   // cancelled because too much waited
  bool ended_ = false;      // nothing more is made
  bool settled_ = false;
  bool client_gone_ = false;  // cancelled because nobody came back
  std::chrono::steady_clock::time_point last_queued_;
  std::chrono::steady_clock::time_point last_progress_;
  std::chrono::steady_clock::time_point last_delta_;
  boost::asio::steady_timer timer_;  // grace while detached, time to live after the end
  boost::asio::steady_timer coalesce_timer_;
  bool coalescing_ = false;  // the timer runs
};

/// An error event: no number, the socket stays open. `extra`: further fields of the event.
std::string error_event(const ApiError& error, const std::string& client_event_id,
                        const std::string& extra = {});
/// The same for the protocol's own codes, such as response_not_found.
std::string protocol_error(std::string_view code, std::string_view message,
                           const std::string& client_event_id, const std::string& extra = {});
/// The error event for a resume behind an event that there is not yet.
std::string no_such_event(const std::string& response_id, int64_t last_seq, int64_t newest_seq,
                          const std::string& client_event_id);
std::string new_event_id();

}  // namespace cedar::gateway

#include <boost/asio/dispatch.hpp>

template <class Action>
void cedar::gateway::StreamResponse::post(Action action) {
  boost::asio::dispatch(executor_,
                        [self = shared_from_this(), action = std::move(action)] { action(*self); });
}
