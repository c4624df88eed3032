#pragma once
// One request while it runs: submits a sequence per choice, turns token events into text on the connection's
// executor, and tells an observer. The bridge between the actors' threads and the sockets' threads.

#include <boost/asio/any_io_executor.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/client.h"
#include "gateway/answer_json.h"
#include "gateway/api_keys.h"
#include "gateway/context.h"
#include "gateway/error_mapping.h"
#include "gateway/prepare.h"
#include "gateway/token_stream.h"

namespace cedar::gateway {

enum class EndStatus : uint8_t { completed, incomplete, cancelled, failed };
std::string_view to_string(EndStatus status);

/// All calls come on the generation's executor, in order; on_end is the last one.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  /// The request was accepted and waits behind `position` others.
  virtual void on_queued(int64_t position) = 0;
  /// The encoder has read `computed` of `total` tokens.
  virtual void on_prefill(int64_t computed, int64_t total) = 0;
  virtual void on_prompt_read(const Usage& usage) = 0;
  /// The decoder has everything and replays the end of the prompt.
  virtual void on_replay() {}
  virtual void on_piece(int64_t choice, const TextPiece& piece) = 0;
  virtual void on_choice_end(int64_t choice, std::string_view finish_reason) = 0;
  /// `error` is set when `status` is failed.
  virtual void on_end(EndStatus status, const Usage& usage,
                      const std::optional<ApiError>& error) = 0;
  /// A batch of the calls above is over: a good moment to write.
  virtual void on_batch_end() = 0;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  /// Starts at once. `context` must outlive the generation. `use` pays for the tokens and ends with the work.
  static std::shared_ptr<Generation> start(GatewayContext& context,
                                           boost::asio::any_io_executor executor,
                                           PreparedRequest request,
                                           std::shared_ptr<GenerationObserver> observer,
                                           KeyUse use);

  /// On the executor. The observer still gets on_end; compute stops within one step.
  void cancel();
  /// On the executor. Whether somebody waits for the answer; while nobody does, its waiting makes no other
  /// answer give way.
  void set_wanted(bool wanted) { wanted_ = wanted; }
  /// On the executor. Like cancel(), and the observer is let go without another call.
  void abandon();

  const PreparedRequest& request() const { return request_; }
  Usage usage() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Choice {
    explicit Choice(TokenStream s) : stream(std::move(s)) {}
    TokenStream stream;
    RequestId id;
    bool text_ended = false;  // the observer has its finish reason
    bool finished = false;    // the actors have said their last word
  };
  class Sink;

  Generation(GatewayContext& context, boost::asio::any_io_executor executor,
             PreparedRequest request, std::shared_ptr<GenerationObserver> observer, KeyUse use);

  void submit();
  /// From any thread.
  void post(size_t choice, actors::StreamEvent&& event);
  void drain();
  void handle(size_t choice, actors::StreamEvent& event);
  void on_prompt_read(const actors::PromptReadEvent& event);
  void on_tokens(size_t index, const std::vector<engine::TokenEvent>& tokens);
  void end_text(size_t index, model::OutputEnd end);
  void on_finished(size_t index, const actors::FinishedEvent& event);
  void finish();
  void cancel_running();
  void measure(size_t tokens);

  GatewayContext& context_;
  boost::asio::any_io_executor executor_;
  PreparedRequest request_;
  std::shared_ptr<GenerationObserver> observer_;
  KeyUse use_;
  std::vector<Choice> choices_;
  std::optional<ApiError> error_;
  Usage prompt_usage_;
  bool prompt_read_ = false;
  bool wanted_ = true;
  bool cancelled_ = false;
  bool incomplete_ = false;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_token_;

  struct Posted {
    size_t choice;
    actors::StreamEvent event;
  };
  std::mutex mutex_;  // of the two below: actors write, the executor reads
  std::vector<Posted> posted_;
  bool drain_scheduled_ = false;
};

}  // namespace cedar::gateway
