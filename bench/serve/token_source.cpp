#include "bench/serve/token_source.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

namespace cedar::bench {

TokenSource::TokenSource(const SourceOptions& options, const TokenScript& script, Stamps& stamps)
    : options_(options),
      interval_ns_(static_cast<int64_t>(1e9 / options.tokens_per_s)),
      script_(script),
      stamps_(stamps),
      thread_([this] { run(); }) {}

TokenSource::~TokenSource() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

RequestId TokenSource::submit(actors::GenerateRequest request,
                              std::shared_ptr<actors::StreamSink> sink) {
  auto stream = std::make_shared<Stream>();
  stream->sink = std::move(sink);
  stream->number = request.decode.sampling.seed;
  stream->prompt_tokens = static_cast<int64_t>(request.decode.prompt.size());
  stream->tokens = request.decode.max_new_tokens;
  std::unique_lock lock(mutex_);
  const uint64_t id = ++last_id_;
  due_.push({first_due(*stream), id});
  streams_.emplace(id, std::move(stream));
  lock.unlock();
  changed_.notify_one();
  return RequestId(id);
}

/// The next moment of the stream's batch.
int64_t TokenSource::first_due(const Stream& stream) const {
  const auto batch = static_cast<int64_t>(stream.number % static_cast<uint64_t>(options_.batches));
  const int64_t phase = interval_ns_ * batch / options_.batches;
  return ((monotonic_ns() - phase) / interval_ns_ + 1) * interval_ns_ + phase;
}

void TokenSource::cancel(RequestId id) {
  std::unique_lock lock(mutex_);
  const auto stream = streams_.find(id.value);
  if (stream == streams_.end()) return;
  stream->second->cancelled = true;
  due_.push({0, id.value});
  lock.unlock();
  changed_.notify_one();
}

actors::Stats TokenSource::stats() const {
  std::lock_guard lock(mutex_);
  actors::Stats stats;
  stats.ready = true;
  stats.running = static_cast<int64_t>(streams_.size());
  return stats;
}

void TokenSource::run() {
  pthread_setname_np(pthread_self(), kSourceThread);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (due_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Due next = due_.top();
    const int64_t wait_ns = next.at_ns - monotonic_ns();
    if (wait_ns > 0) {
      changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns));
      continue;
    }
    due_.pop();
    const auto found = streams_.find(next.id);
    if (found == streams_.end()) continue;  // a cancelled stream's next token
    const std::shared_ptr<Stream> stream = found->second;
    const bool cancelled = stream->cancelled;
    lock.unlock();
    if (cancelled)
      stream->sink->on_event(actors::FinishedEvent{engine::FinishReason::cancelled, {}});
    const bool goes_on = !cancelled && step(*stream, RequestId(next.id), next.at_ns);
    lock.lock();
    if (goes_on) {
      due_.push({next.at_ns + interval_ns_, next.id});
    } else {
      streams_.erase(next.id);
    }
  }
}

bool TokenSource::step(Stream& stream, RequestId id, int64_t due_ns) {
  if (stream.written == 0) stream.sink->on_event(actors::PromptReadEvent{stream.prompt_tokens, 0});
  engine::TokenEvent token;
  token.id = id;
  token.index = stream.written;
  token.token.token = script_.id(stream.number, stream.written);
  const bool last = stream.written + 1 == stream.tokens;
  if (last) token.finish = engine::FinishReason::length;
  actors::TokensEvent event;
  event.tokens.push_back(std::move(token));
  const int64_t now = monotonic_ns();
  auto& max_lag = stamps_.max_lag();
  max_lag.store(std::max(max_lag.load(std::memory_order_relaxed), now - due_ns),
                std::memory_order_relaxed);
  if (stream.number < static_cast<uint64_t>(stamps_.streams()) &&
      stream.written < stamps_.tokens()) {
    stamps_.emitted(static_cast<int64_t>(stream.number), stream.written)
        .store(now, std::memory_order_release);
  }
  ++stream.written;
  stream.sink->on_event(std::move(event));
  if (last) stream.sink->on_event(actors::FinishedEvent{engine::FinishReason::length, {}});
  return !last;
}

}  // namespace cedar::bench
