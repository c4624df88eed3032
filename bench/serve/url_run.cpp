#include "bench/serve/url_run.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <random>
#include <utility>

#include "apps/progress_line.h"
#include "apps/server_event.h"
#include "bench/serve/stamps.h"
#include "bench/serve/ws_client.h"
#include "bench/support/report.h"

namespace cedar::bench {
namespace {

constexpr double kNs = 1e-9;
constexpr int64_t kConnectNs = 30'000'000'000;
constexpr int64_t kShortWords = 64;
constexpr int64_t kLongWords = 320;
constexpr size_t kProblems = 5;

class Run final : public WsHandler {
 public:
  explicit Run(const UrlOptions& options)
      : options_(options), random_(options.seed), progress_("requests") {}

  Status connect() {
    CEDAR_TRY(WsEndpoint endpoint, resolve_endpoint(options_.url.host, options_.url.port,
                                                    options_.url.authority(), options_.url.path));
    if (!options_.key.empty()) endpoint.headers = "Authorization: Bearer " + options_.key + "\r\n";
    CEDAR_TRY(client_, WsClient::create(std::move(endpoint), *this));
    const int64_t count = std::min(options_.concurrency, options_.requests);
    slots_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) CEDAR_CHECK_OK(client_->connect());
    const int64_t deadline = monotonic_ns() + kConnectNs;
    while (static_cast<int64_t>(idle_.size()) < count) {
      client_->poll(100);
      if (closed_ > 0) return make_error(Errc::unavailable, result_.problems.at(0));
      if (monotonic_ns() > deadline)
        return make_error(Errc::unavailable, "not all connections opened in time");
    }
    return {};
  }

  /// How many words make a prompt of the wanted length.
  Status calibrate() {
    CEDAR_TRY(const int64_t few, tokens_of(kShortWords));
    CEDAR_TRY(const int64_t many, tokens_of(kLongWords));
    const double per_word =
        static_cast<double>(many - few) / static_cast<double>(kLongWords - kShortWords);
    if (per_word <= 0) return make_error(Errc::unavailable, "the server counts no prompt tokens");
    const double fixed = static_cast<double>(few) - per_word * kShortWords;
    words_ = std::max<int64_t>(
        1, std::llround((static_cast<double>(options_.prompt_tokens) - fixed) / per_word));
    result_ = {};
    return {};
  }

  UrlResult measure() {
    std::exponential_distribution<double> gap(std::max(options_.request_rate, 1e-9));
    const int64_t begin = monotonic_ns();
    double arrival = 0;  // of the next request, in seconds
    int64_t sent = 0;
    while (ended() < options_.requests && !all_lost()) {
      const double now = static_cast<double>(monotonic_ns() - begin) * kNs;
      while (sent < options_.requests && !idle_.empty() && arrival <= now) {
        ask(words_, options_.answer_tokens);
        ++sent;
        if (options_.request_rate > 0) arrival += gap(random_);
      }
      progress_.show(ended(), options_.requests, "answered");
      client_->poll(sent < options_.requests && options_.request_rate > 0 ? 1 : 50);
    }
    progress_.clear();
    result_.failed = options_.requests - result_.completed;
    result_.seconds = static_cast<double>(monotonic_ns() - begin) * kNs;
    for (auto* times :
         {&result_.first_token, &result_.inter_token, &result_.per_token, &result_.whole})
      std::sort(times->begin(), times->end());
    return std::move(result_);
  }

  void on_open(size_t connection) override { idle_.push_back(connection); }
  void on_closed(size_t connection, const std::string& why) override {
    ++closed_;
    note(why);
    if (std::exchange(slots_[connection].busy, false)) ++result_.failed;
    idle_.erase(std::remove(idle_.begin(), idle_.end(), connection), idle_.end());
  }
  void on_text(size_t connection, std::string_view text, int64_t received_ns) override;

 private:
  struct Slot {
    bool busy = false;
    int64_t sent_ns = 0;
    int64_t first_ns = 0;
    int64_t last_ns = 0;
  };

  int64_t ended() const { return result_.completed + result_.failed; }
  /// Every connection was lost.
  bool all_lost() const { return closed_ == static_cast<int64_t>(slots_.size()); }
  void note(std::string problem) {
    if (result_.problems.size() < kProblems) result_.problems.push_back(std::move(problem));
  }

  void ask(int64_t words, int64_t answer_tokens) {
    nlohmann::json request = {{"messages", {{{"role", "user"}, {"content", text(words)}}}},
                              {"max_tokens", answer_tokens},
                              {"ignore_eos", true}};
    if (!options_.model.empty()) request["model"] = options_.model;
    const size_t connection = idle_.front();
    idle_.pop_front();
    Slot& slot = slots_[connection];
    slot = {};
    slot.busy = true;
    const std::string message =
        R"({"type":"response.create","resumable":false,"request":)" + request.dump() + '}';
    slot.sent_ns = monotonic_ns();
    client_->send(connection, message);
  }

  /// Words nobody has said before, so that no cache knows the prompt.
  std::string text(int64_t words) {
    static constexpr const char* kSyllables[] = {"ba", "ko", "li", "mu", "ne", "ro", "sa", "ti"};
    std::string out;
    for (int64_t i = 0; i < words; ++i) {
      if (i > 0) out += ' ';
      for (int part = 0; part < 3; ++part) out += kSyllables[random_() % std::size(kSyllables)];
    }
    return out;
  }

  Result<int64_t> tokens_of(int64_t words) {
    result_ = {};
    ask(words, 1);
    while (ended() == 0) client_->poll(50);
    if (result_.completed == 0) {
      return make_error(
          Errc::unavailable,
          "the server did not answer: " +
              (result_.problems.empty() ? std::string("no reason given") : result_.problems[0]));
    }
    return result_.prompt_tokens;
  }

  void on_done(size_t connection, const apps::ServerEvent& event, int64_t now);

  const UrlOptions& options_;
  std::mt19937_64 random_;
  apps::ProgressLine progress_;
  std::unique_ptr<WsClient> client_;
  std::vector<Slot> slots_;  // by connection
  std::deque<size_t> idle_;  // connections without a request
  int64_t closed_ = 0;
  int64_t words_ = 0;
  UrlResult result_;
};

void Run::on_text(size_t connection, std::string_view text, int64_t received_ns) {
  const auto event = apps::read_server_event(text);
  if (!event) {
    note(event.error().context);
    return;
  }
  Slot& slot = slots_[connection];
  if (!slot.busy) return;
  switch (event->kind) {
    case apps::ServerEventKind::content:
    case apps::ServerEventKind::reasoning:
      if (slot.first_ns == 0) {
        slot.first_ns = received_ns;
      } else {
        result_.inter_token.push_back(static_cast<double>(received_ns - slot.last_ns) * kNs);
      }
      slot.last_ns = received_ns;
      break;
    case apps::ServerEventKind::error:
      note(event->text);
      ++result_.failed;
      slot.busy = false;
      idle_.push_back(connection);
      break;
    case apps::ServerEventKind::done: on_done(connection, *event, received_ns); break;
    default: break;
  }
}

void Run::on_done(size_t connection, const apps::ServerEvent& event, int64_t now) {
  Slot& slot = slots_[connection];
  slot.busy = false;
  idle_.push_back(connection);
  const bool good = event.status == apps::ResponseStatus::completed ||
                    event.status == apps::ResponseStatus::incomplete;
  if (!good) {
    ++result_.failed;
    return note(std::string(to_string(event.status)) + ": " + event.text);
  }
  ++result_.completed;
  result_.prompt_tokens += event.prompt_tokens;
  result_.answer_tokens += event.completion_tokens;
  // An answer whose tokens have no text has its first one at its end.
  const int64_t first = slot.first_ns == 0 ? now : slot.first_ns;
  result_.first_token.push_back(static_cast<double>(first - slot.sent_ns) * kNs);
  result_.whole.push_back(static_cast<double>(now - slot.sent_ns) * kNs);
  if (event.completion_tokens > 1) {
    result_.per_token.push_back(static_cast<double>(now - first) * kNs /
                                static_cast<double>(event.completion_tokens - 1));
  }
}

}  // namespace

Result<UrlResult> run_url(const UrlOptions& options) {
  CEDAR_CHECK_OK(raise_file_limit(options.concurrency + 64));
  Run run(options);
  CEDAR_CHECK_OK(run.connect());
  CEDAR_CHECK_OK(run.calibrate());
  return run.measure();
}

}  // namespace cedar::bench
