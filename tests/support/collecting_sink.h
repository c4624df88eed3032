#pragma once
// A sink that keeps what it gets and lets a test wait for the end.

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "actors/client.h"
#include "tests/support/eventually.h"

namespace cedar::test {

class CollectingSink final : public actors::StreamSink {
 public:
  void on_event(actors::StreamEvent&& event) override {
    std::lock_guard lock(mutex_);
    if (auto* tokens = std::get_if<actors::TokensEvent>(&event)) {
      for (const engine::TokenEvent& token : tokens->tokens) {
        tokens_.push_back(token.token.token);
        logprobs_.push_back(token.token.logprob.value_or(0));
      }
    } else if (auto* read = std::get_if<actors::PromptReadEvent>(&event)) {
      cached_tokens_ = read->cached_tokens;
      read_ = *read;
    } else if (auto* queued = std::get_if<actors::QueuedEvent>(&event)) {
      positions_.push_back(queued->position);
    } else if (auto* progress = std::get_if<actors::PrefillEvent>(&event)) {
      computed_.push_back(progress->computed);
    } else if (auto* finished = std::get_if<actors::FinishedEvent>(&event)) {
      ++finishes_;
      finished_ = *finished;
    }
    changed_.notify_all();
  }

  /// Empty when nothing ended within `limit`.
  std::optional<actors::FinishedEvent> wait_end(
      std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [this] { return finished_.has_value(); });
    return finished_;
  }
  bool wait_tokens(size_t count, std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return tokens_.size() >= count; });
  }
  bool wait_progress(std::chrono::milliseconds limit = std::chrono::seconds(10)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit,
                             [&] { return !computed_.empty() && computed_.back() > 0; });
  }
  std::vector<TokenId> tokens() const {
    std::lock_guard lock(mutex_);
    return tokens_;
  }
  std::vector<int64_t> positions() const {
    std::lock_guard lock(mutex_);
    return positions_;
  }
  std::vector<int64_t> computed() const {
    std::lock_guard lock(mutex_);
    return computed_;
  }
  std::vector<float> logprobs() const {
    std::lock_guard lock(mutex_);
    return logprobs_;
  }
  /// -1: the prompt has not been read.
  int64_t cached_tokens() const {
    std::lock_guard lock(mutex_);
    return cached_tokens_;
  }
  actors::PromptReadEvent prompt_read() const {
    std::lock_guard lock(mutex_);
    return read_;
  }
  int finishes() const {
    std::lock_guard lock(mutex_);
    return finishes_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenId> tokens_;
  std::vector<float> logprobs_;
  int64_t cached_tokens_ = -1;
  actors::PromptReadEvent read_;
  std::vector<int64_t> positions_;
  std::vector<int64_t> computed_;
  std::optional<actors::FinishedEvent> finished_;
  int finishes_ = 0;
};

}  // namespace cedar::test
