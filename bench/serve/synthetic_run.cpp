#include "bench/serve/synthetic_run.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "apps/progress_line.h"
#include "bench/serve/ws_client.h"
#include "bench/support/report.h"

namespace cedar::bench {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kConnectingAtOnce = 128;
constexpr int64_t kConnectTimeNs = 30 * kSecondNs;
constexpr int64_t kMemorySteps = 5;
constexpr int64_t kSilenceNs = 20 * kSecondNs;  // without a token of any stream: the rest is lost
constexpr int64_t kSampleNs = kSecondNs / 4;
constexpr int kSlowBufferBytes = 4096;  // what a slow reader's system takes for it
constexpr size_t kProblems = 5;
constexpr int64_t kAcknowledgeEvery = 64;  // events

class Run final : public WsHandler {
 public:
  Run(const SyntheticOptions& options, const TokenScript& script, Stamps& stamps,
      ServerProcess& server, const std::string& title)
      : options_(options), script_(script), stamps_(stamps), server_(server), progress_(title) {}

  Result<SyntheticResult> run() {
    CEDAR_TRY(WsEndpoint endpoint,
              resolve_endpoint("127.0.0.1", std::to_string(server_.port()),
                               "127.0.0.1:" + std::to_string(server_.port()), "/v1/stream"));
    CEDAR_TRY(client_, WsClient::create(std::move(endpoint), *this));
    streams_.resize(static_cast<size_t>(options_.streams));
    CEDAR_CHECK_OK(open_all());
    stream_all();
    collect();
    return std::move(result_);
  }

  void on_open(size_t) override { ++open_; }
  void on_closed(size_t connection, const std::string& why) override {
    ++closed_;
    if (is_slow(connection)) {
      ++result_.slow_closed;
      return;
    }
    note("connection " + std::to_string(connection) + ": " + why);
    const auto [first, last] = streams_of(connection);
    for (int64_t s = first; s < last; ++s) end(s, false);
  }
  void on_text(size_t, std::string_view text, int64_t received_ns) override;

 private:
  struct Stream {
    StreamCheck check;
    int64_t events = 0;
    bool ended = false;
  };

  int64_t connections() const {
    return (options_.streams + options_.streams_per_connection - 1) /
           options_.streams_per_connection;
  }
  /// Spread evenly among the others.
  bool is_slow(size_t connection) const {
    const auto before = static_cast<int64_t>(static_cast<double>(connection) * options_.slow_share);
    return static_cast<int64_t>(static_cast<double>(connection + 1) * options_.slow_share) > before;
  }
  std::pair<int64_t, int64_t> streams_of(size_t connection) const {
    const int64_t first = static_cast<int64_t>(connection) * options_.streams_per_connection;
    return {first, std::min(first + options_.streams_per_connection, options_.streams)};
  }

  Status open_all();
  void stream_all();
  void request(int64_t stream);
  void end(int64_t stream, bool completed);
  void on_delta(int64_t stream, std::string_view delta, int64_t received_ns);
  void acknowledge(size_t connection, int64_t stream, std::string_view id, std::string_view event);
  void collect();
  void note(std::string problem) {
    if (result_.problems.size() < kProblems) result_.problems.push_back(std::move(problem));
  }

  const SyntheticOptions& options_;
  const TokenScript& script_;
  Stamps& stamps_;
  ServerProcess& server_;
  apps::ProgressLine progress_;
  std::unique_ptr<WsClient> client_;
  std::vector<Stream> streams_;
  std::vector<std::pair<float, int32_t>> latency_;  // ms, and the second in which the token came
  std::string prompt_;
  SyntheticResult result_;
  bool over_ = false;  // what comes now comes too late
  int64_t open_ = 0;
  int64_t closed_ = 0;
  int64_t ended_ = 0;
  int64_t begin_ns_ = 0;
  int64_t last_token_ns_ = 0;
};

Status Run::open_all() {
  const int64_t all = connections();
  result_.connections = all;
  result_.idle.push_back({0, server_.memory_bytes()});
  int64_t begun = 0;
  for (int64_t step = 1; step <= kMemorySteps; ++step) {
    const int64_t target = all * step / kMemorySteps;
    const int64_t deadline = monotonic_ns() + kConnectTimeNs;
    while (open_ < target) {
      while (begun < target && begun - open_ < kConnectingAtOnce) {
        const bool slow = is_slow(static_cast<size_t>(begun));
        CEDAR_TRY(const size_t number, client_->connect(slow ? kSlowBufferBytes : 0));
        begun = static_cast<int64_t>(number) + 1;
      }
      client_->poll(100);
      if (closed_ > 0)
        return make_error(Errc::unavailable, result_.problems.empty() ? "a connection was refused"
                                                                      : result_.problems[0]);
      if (monotonic_ns() > deadline)
        return make_error(Errc::unavailable, std::to_string(open_) + " of " + std::to_string(all) +
                                                 " connections opened in time");
      progress_.show(open_, all, "connections");
    }
    // What is said at the beginning is read before the memory is.
    const int64_t settled = monotonic_ns() + kSecondNs / 5;
    while (monotonic_ns() < settled) client_->poll(20);
    result_.idle.push_back({open_, server_.memory_bytes()});
  }
  return {};
}

void Run::request(int64_t stream) {
  const auto connection = static_cast<size_t>(stream / options_.streams_per_connection);
  const bool slow = is_slow(connection);
  const std::string number = std::to_string(stream);
  // What is not read shall be long, so that it soon fills the sockets' buffers and waits in the gateway.
  const std::string name = slow ? std::string(40, 'x') + '-' : "bench-";
  const std::string more = slow ? R"(,"return_token_ids":true)" : "";
  client_->send(connection, R"({"type":"response.create","response_id":")" + name +
                                std::string(12 - number.size(), '0') + number +
                                R"(","resumable":)" + (options_.resumable ? "true" : "false") +
                                R"(,"request":{"messages":[{"role":"user","content":")" + prompt_ +
                                R"("}],"thinking":{"type":"disabled"},"seed":)" + number +
                                R"(,"max_tokens":)" + std::to_string(options_.tokens) + more +
                                "}}");
  if (slow) {
    client_->set_reading(connection, false);
    end(stream, false);  // nobody waits for it
  }
}

void Run::stream_all() {
  for (int64_t i = 0; i < options_.prompt_tokens; ++i) prompt_ += script_.text(0, i);
  latency_.reserve(static_cast<size_t>(options_.streams * options_.tokens));
  const ServerTime server_before = server_.processor_time();
  const double client_before = own_processor_time();
  begin_ns_ = last_token_ns_ = monotonic_ns();
  const auto ramp_ns = static_cast<int64_t>(options_.ramp_s * 1e9);
  int64_t requested = 0;
  int64_t next_sample = begin_ns_;
  while (ended_ < options_.streams) {
    const int64_t now = monotonic_ns();
    while (requested < options_.streams &&
           now - begin_ns_ >= ramp_ns * requested / options_.streams)
      request(requested++);
    if (requested == options_.streams && now - last_token_ns_ > kSilenceNs) {
      note("no token came for " + std::to_string(kSilenceNs / kSecondNs) + " s");
      break;
    }
    if (now >= next_sample) {
      next_sample = now + kSampleNs;
      result_.streaming_peak_bytes = std::max(result_.streaming_peak_bytes, server_.memory_bytes());
      progress_.show(static_cast<int64_t>(latency_.size()), options_.streams * options_.tokens,
                     "tokens");
    }
    client_->poll(requested < options_.streams ? 1 : 50);
  }
  progress_.clear();
  over_ = true;
  result_.seconds = static_cast<double>(monotonic_ns() - begin_ns_) * 1e-9;
  const ServerTime server_after = server_.processor_time();
  result_.server_time = {server_after.total_s - server_before.total_s,
                         server_after.source_s - server_before.source_s};
  result_.client_time_s = own_processor_time() - client_before;
  result_.source_lag_ms = static_cast<double>(stamps_.max_lag().load()) * 1e-6;
  // Slow readers that the server has given up show it only when somebody looks.
  for (int64_t c = 0; c < result_.connections; ++c) {
    if (is_slow(static_cast<size_t>(c))) client_->set_reading(static_cast<size_t>(c), true);
  }
}

/// The value of a string field; only for values without escapes, which ours are.
std::string_view plain_text(std::string_view json, std::string_view name) {
  const std::string key = "\"" + std::string(name) + "\":\"";
  const size_t at = json.find(key);
  if (at == std::string_view::npos) return {};
  const size_t begin = at + key.size();
  return json.substr(begin, json.find('"', begin) - begin);
}

void Run::on_text(size_t connection, std::string_view text, int64_t received_ns) {
  const std::string_view type = plain_text(text, "type");
  if (type == "error") return note(std::string(text.substr(0, 300)));
  const bool delta = type == "response.content.delta";
  if ((!delta && type != "response.done") || over_ || is_slow(connection)) return;
  const std::string_view id = plain_text(text, "response_id");
  const size_t dash = std::min(id.find('-'), id.size() - 1);
  int64_t stream = -1;
  std::from_chars(id.data() + dash + 1, id.data() + id.size(), stream);
  const auto [first, last] = streams_of(connection);
  if (stream < first || stream >= last)
    return note("foreign event: " + std::string(text.substr(0, 300)));
  if (delta) {
    on_delta(stream, plain_text(text, "delta"), received_ns);
    return acknowledge(connection, stream, id, text);
  }
  // The answer ends because it is as long as was asked for.
  if (plain_text(text, "status") != "incomplete") note(std::string(text.substr(0, 300)));
  end(stream, plain_text(text, "status") == "incomplete");
}

/// As clients do that may come back: now and then, so that the server can forget.
void Run::acknowledge(size_t connection, int64_t stream, std::string_view id,
                      std::string_view event) {
  int64_t& events = streams_[static_cast<size_t>(stream)].events;
  if (!options_.resumable || ++events % kAcknowledgeEvery != 0) return;
  constexpr std::string_view kKey = "\"seq\":";
  const size_t begin = event.find(kKey) + kKey.size();
  const std::string_view seq =
      event.substr(begin, event.find_first_not_of("0123456789", begin) - begin);
  client_->send(connection, R"({"type":"response.ack","response_id":")" + std::string(id) +
                                R"(","seq":)" + std::string(seq) + '}');
}

void Run::on_delta(int64_t stream, std::string_view delta, int64_t received_ns) {
  StreamCheck& check = streams_[static_cast<size_t>(stream)].check;
  const int64_t tokens = check.take(script_, static_cast<uint64_t>(stream), delta);
  last_token_ns_ = received_ns;
  for (int64_t i = check.received() - tokens; i < check.received() && i < options_.tokens; ++i) {
    const int64_t emitted = stamps_.emitted(stream, i).load(std::memory_order_acquire);
    latency_.emplace_back(static_cast<float>(received_ns - emitted) * 1e-6F,
                          static_cast<int32_t>((received_ns - begin_ns_) / kSecondNs));
  }
}

void Run::end(int64_t stream, bool completed) {
  Stream& s = streams_[static_cast<size_t>(stream)];
  if (std::exchange(s.ended, true)) return;
  ++ended_;
  if (completed) ++result_.completed;
}

void Run::collect() {
  // Closed connections of slow readers are found while the last bytes are read.
  const int64_t until = monotonic_ns() + kSecondNs / 2;
  while (monotonic_ns() < until) client_->poll(20);
  for (int64_t c = 0; c < result_.connections; ++c) {
    if (is_slow(static_cast<size_t>(c))) {
      ++result_.slow_connections;
      continue;
    }
    const auto [first, last] = streams_of(static_cast<size_t>(c));
    for (int64_t s = first; s < last; ++s) {
      StreamCheck& check = streams_[static_cast<size_t>(s)].check;
      check.finish(options_.tokens);
      ++result_.streams;
      result_.wrong.lost += check.counts().lost;
      result_.wrong.repeated += check.counts().repeated;
      result_.wrong.out_of_order += check.counts().out_of_order;
    }
  }
  result_.tokens = static_cast<int64_t>(latency_.size());
  std::sort(latency_.begin(), latency_.end());
  std::vector<std::vector<double>> seconds(static_cast<size_t>(result_.seconds) + 2);
  for (const auto& [ms, second] : latency_) {
    result_.latency_ms.push_back(static_cast<double>(ms));
    seconds[std::min(static_cast<size_t>(second), seconds.size() - 1)].push_back(
        static_cast<double>(ms));
  }
  for (const auto& second : seconds) result_.second_p99_ms.push_back(percentile(second, 0.99));
}

}  // namespace

Result<SyntheticResult> run_synthetic(const SyntheticOptions& options, const TokenScript& script,
                                      const std::string& title) {
  CEDAR_CHECK_OK(raise_file_limit(options.streams / options.streams_per_connection + 64));
  CEDAR_TRY(const auto stamps, Stamps::create(options.streams, options.tokens));
  CEDAR_TRY(const auto server, ServerProcess::start(options.server, script, *stamps));
  Run run(options, script, *stamps, *server, title);
  return run.run();
}

}  // namespace cedar::bench
