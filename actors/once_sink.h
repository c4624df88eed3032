#pragma once
// Makes "exactly one FinishedEvent" true however a request ends: the session reports through it, the router
// reports for a session that died without a word, and the destructor reports when the message that carried
// the request was dropped with a dead mailbox.

#include <atomic>
#include <memory>
#include <utility>

#include "actors/client.h"

namespace cedar::actors {

class OnceSink {
 public:
  explicit OnceSink(std::shared_ptr<StreamSink> sink) : sink_(std::move(sink)) {}
  OnceSink(const OnceSink&) = delete;
  OnceSink& operator=(const OnceSink&) = delete;
  ~OnceSink() { fail(make_error(Errc::unavailable, "the request was dropped")); }

  /// For events before the end.
  void event(StreamEvent&& event) {
    if (!finished_.load(std::memory_order_acquire)) sink_->on_event(std::move(event));
  }
  /// The first call wins.
  void finish(engine::FinishReason reason, std::optional<Error> error = {}) {
    if (finished_.exchange(true, std::memory_order_acq_rel)) return;
    sink_->on_event(FinishedEvent{reason, std::move(error)});
    sink_.reset();
  }
  void fail(Error error) { finish(engine::FinishReason::failed, std::move(error)); }

 private:
  std::shared_ptr<StreamSink> sink_;
  std::atomic<bool> finished_{false};
};

}  // namespace cedar::actors
