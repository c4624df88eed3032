#pragma once
// Stands where the engine stands: takes requests through the same door and writes tokens at a fixed rate.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <queue>
#include <thread>
#include <unordered_map>
#include <vector>

#include "actors/client.h"
#include "bench/serve/stamps.h"
#include "bench/serve/token_script.h"

namespace cedar::bench {

/// The name of the thread that calls all sinks.
inline constexpr const char* kSourceThread = "token-source";

struct SourceOptions {
  double tokens_per_s = 10;  // of each stream
  int64_t batches =
      100;  // streams are dealt to that many batches; a batch's tokens come together, as a decode step's do
};

/// The seed of a request is the number of its stream in `stamps`; others get their tokens without stamps.
class TokenSource final : public actors::Client {
 public:
  /// `script` and `stamps` must outlive it.
  TokenSource(const SourceOptions& options, const TokenScript& script, Stamps& stamps);
  ~TokenSource() override;

  RequestId submit(actors::GenerateRequest request,
                   std::shared_ptr<actors::StreamSink> sink) override;
  void cancel(RequestId id) override;
  actors::Stats stats() const override;

 private:
  struct Stream {
    std::shared_ptr<actors::StreamSink> sink;
    uint64_t number = 0;
    int64_t prompt_tokens = 0;
    int64_t tokens = 0;
    int64_t written = 0;
    bool cancelled = false;
  };
  struct Due {
    int64_t at_ns;
    uint64_t id;
    bool operator>(const Due& other) const { return at_ns > other.at_ns; }
  };

  void run();
  /// Calls the sink. Returns whether the stream goes on.
  bool step(Stream& stream, RequestId id, int64_t due_ns);
  int64_t first_due(const Stream& stream) const;

  const SourceOptions options_;
  const int64_t interval_ns_;
  const TokenScript& script_;
  Stamps& stamps_;

  // Connections submit while the one thread waits for the next token's time. No sink is called while it is held.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::shared_ptr<Stream>> streams_;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  uint64_t last_id_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace cedar::bench
