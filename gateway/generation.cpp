#include "gateway/generation.h"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <utility>

#include "gateway/detached_answers.h"

namespace cedar::gateway {
namespace {

std::string_view name_of(actors::ResumeKind kind) {
  switch (kind) {
    case actors::ResumeKind::none: return "none";
    case actors::ResumeKind::windows: return "windows";
    case actors::ResumeKind::bounded: return "bounded";
    case actors::ResumeKind::exact: return "exact";
  }
  return "none";
}

double seconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

using monitoring::MetricId;

/// Receives the events of one choice on the actors' threads.
class Generation::Sink final : public actors::StreamSink {
 public:
  Sink(std::shared_ptr<Generation> generation, size_t choice)
      : generation_(std::move(generation)), choice_(choice) {}
  void on_event(actors::StreamEvent&& event) override {
    generation_->post(choice_, std::move(event));
  }

 private:
  std::shared_ptr<Generation> generation_;
  size_t choice_;
};

std::string_view to_string(EndStatus status) {
  switch (status) {
    case EndStatus::completed: return "completed";
    case EndStatus::incomplete: return "incomplete";
    case EndStatus::cancelled: return "cancelled";
    case EndStatus::failed: return "failed";
  }
  return "failed";
}

Generation::Generation(GatewayContext& context, boost::asio::any_io_executor executor,
                       PreparedRequest request, std::shared_ptr<GenerationObserver> observer,
                       KeyUse use)
    : context_(context),
      executor_(std::move(executor)),
      request_(std::move(request)),
      observer_(std::move(observer)),
      use_(std::move(use)) {
  prompt_usage_.prompt_tokens = static_cast<int64_t>(request_.prompt.size());
  use_.charge(prompt_usage_.prompt_tokens);
  for (int64_t i = 0; i < request_.api.choices; ++i) {
    choices_.emplace_back(TokenStream(request_, context_.card));
  }
}

std::shared_ptr<Generation> Generation::start(GatewayContext& context,
                                              boost::asio::any_io_executor executor,
                                              PreparedRequest request,
                                              std::shared_ptr<GenerationObserver> observer,
                                              KeyUse use) {
  std::shared_ptr<Generation> generation(new Generation(
      context, std::move(executor), std::move(request), std::move(observer), std::move(use)));
  generation->submit();
  return generation;
}

void Generation::submit() {
  // Nobody learns from timing what others have asked: cached prefixes are those of one key, and of what the client adds to
  // tell its own users apart. The letter keeps the two kinds of salt apart.
  std::string salt(1, use_.account() != nullptr ? 'k' : 'o');
  if (use_.account() != nullptr) {
    const KeyDigest& digest = use_.account()->digest();
    salt.append(digest.begin(), digest.end());
  }
  salt += request_.api.cache_salt;
  for (size_t i = 0; i < choices_.size(); ++i) {
    actors::GenerateRequest request;
    request.decode = request_.sequence(static_cast<uint32_t>(i));
    request.deadline = context_.options.http.request_timeout;
    request.priority = request_.api.priority;
    request.cache_salt = salt;
    choices_[i].id =
        context_.client.submit(std::move(request), std::make_shared<Sink>(shared_from_this(), i));
  }
  request_.prompt = {};  // the sequences have it; only its length is needed from here on
}

void Generation::post(size_t choice, actors::StreamEvent&& event) {
  {
    std::lock_guard lock(mutex_);
    posted_.push_back({choice, std::move(event)});
    if (std::exchange(drain_scheduled_, true)) return;
  }
  boost::asio::post(executor_, [self = shared_from_this()] { self->drain(); });
}

void Generation::drain() {
  std::vector<Posted> batch;
  {
    std::lock_guard lock(mutex_);
    batch.swap(posted_);
    drain_scheduled_ = false;
  }
  const auto observer = observer_;  // on_end lets go of it
  for (Posted& posted : batch) handle(posted.choice, posted.event);
  if (observer) observer->on_batch_end();
}

void Generation::handle(size_t index, actors::StreamEvent& event) {
  if (auto* tokens = std::get_if<actors::TokensEvent>(&event)) {
    on_tokens(index, tokens->tokens);
  } else if (auto* finished = std::get_if<actors::FinishedEvent>(&event)) {
    on_finished(index, *finished);
  } else if (const auto* read = std::get_if<actors::PromptReadEvent>(&event);
             read != nullptr && index == 0) {
    on_prompt_read(*read);
  } else if (!observer_ || index != 0) {
    return;  // the choices share one prompt: the first one's progress stands for all
  } else if (auto* queued = std::get_if<actors::QueuedEvent>(&event)) {
    if (wanted_) context_.detached->give_way(queued->position + 1);
    observer_->on_queued(queued->position);
  } else if (auto* prefill = std::get_if<actors::PrefillEvent>(&event)) {
    observer_->on_prefill(prefill->computed, prefill->total);
  } else if (std::holds_alternative<actors::ReplayEvent>(event)) {
    observer_->on_replay();
  }
}

void Generation::on_prompt_read(const actors::PromptReadEvent& event) {
  prompt_usage_.cached_tokens = event.cached_tokens;
  prompt_usage_.disk_tokens = event.disk_tokens;
  prompt_usage_.replayed_tokens = event.replayed_tokens;
  prompt_usage_.resume = name_of(event.resume);
  if (std::exchange(prompt_read_, true)) return;
  if (event.cached_tokens > 0) {
    using monitoring::Tier;
    monitoring::Metrics& metrics = context_.metrics;
    const int64_t in_memory = event.cached_tokens - event.disk_tokens;
    metrics.add(MetricId::cached_prompt_tokens, Tier::memory, static_cast<double>(in_memory));
    metrics.add(MetricId::cached_prompt_tokens, Tier::disk, static_cast<double>(event.disk_tokens));
    metrics.add(MetricId::replayed_prompt_tokens, static_cast<double>(event.replayed_tokens));
    metrics.add(MetricId::prefix_resumes, event.resume);
  }
  if (observer_) observer_->on_prompt_read(usage());
}

void Generation::on_tokens(size_t index, const std::vector<engine::TokenEvent>& tokens) {
  measure(tokens.size());
  use_.charge(static_cast<int64_t>(tokens.size()));
  Choice& choice = choices_[index];
  for (const engine::TokenEvent& token : tokens) {
    if (choice.text_ended) return;
    const TextPiece piece = choice.stream.push(token);
    if (observer_) observer_->on_piece(static_cast<int64_t>(index), piece);
    if (choice.stream.stopped()) {
      end_text(index, model::OutputEnd::stop_token);
      context_.client.cancel(choice.id);
    }
  }
}

void Generation::end_text(size_t index, model::OutputEnd end) {
  Choice& choice = choices_[index];
  if (std::exchange(choice.text_ended, true)) return;
  const TextPiece piece = choice.stream.finish(end);
  if (choice.stream.finish_reason() == "length") incomplete_ = true;
  if (!observer_) return;
  if (!piece.segments.empty()) observer_->on_piece(static_cast<int64_t>(index), piece);
  observer_->on_choice_end(static_cast<int64_t>(index), choice.stream.finish_reason());
}

void Generation::on_finished(size_t index, const actors::FinishedEvent& event) {
  Choice& choice = choices_[index];
  choice.finished = true;
  switch (event.reason) {
    case engine::FinishReason::stop: end_text(index, model::OutputEnd::stop_token); break;
    case engine::FinishReason::length: end_text(index, model::OutputEnd::length); break;
    case engine::FinishReason::cancelled:
      // Ours after a stop string, the client's, or the system's when it stops.
      if (!choice.text_ended) cancelled_ = true;
      break;
    case engine::FinishReason::none:
    case engine::FinishReason::failed:
      if (!error_ && !choice.text_ended) {
        error_ = to_api_error(event.error.value_or(make_error(Errc::internal, "no reason given")));
        cancel_running();  // an answer with a choice missing is no answer
      }
      break;
  }
  const bool all =
      std::all_of(choices_.begin(), choices_.end(), [](const Choice& c) { return c.finished; });
  if (all) finish();
}

void Generation::finish() {
  const EndStatus status = error_        ? EndStatus::failed
                           : cancelled_  ? EndStatus::cancelled
                           : incomplete_ ? EndStatus::incomplete
                                         : EndStatus::completed;
  const Usage total = usage();
  monitoring::Metrics& metrics = context_.metrics;
  metrics.add(MetricId::responses, static_cast<monitoring::Outcome>(status));
  metrics.add(MetricId::prompt_tokens, static_cast<double>(total.prompt_tokens));
  metrics.add(MetricId::completion_tokens, static_cast<double>(total.completion_tokens));
  metrics.observe(MetricId::response_seconds, seconds(Clock::now() - begin_));
  use_.release();  // before the client has the answer and sends more
  if (const auto observer = std::move(observer_)) observer->on_end(status, total, error_);
  observer_.reset();
}

void Generation::cancel() {
  cancelled_ = true;
  cancel_running();
}

void Generation::abandon() {
  observer_.reset();
  cancel();
}

void Generation::cancel_running() {
  for (const Choice& choice : choices_) {
    if (!choice.finished) context_.client.cancel(choice.id);
  }
}

Usage Generation::usage() const {
  Usage usage = prompt_usage_;
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.stream.completion_tokens();
    usage.reasoning_tokens += choice.stream.reasoning_tokens();
  }
  return usage;
}

void Generation::measure(size_t tokens) {
  const auto now = Clock::now();
  if (last_token_ == Clock::time_point{}) {
    context_.metrics.observe(MetricId::time_to_first_token, seconds(now - begin_));
  } else if (tokens > 0) {
    context_.metrics.observe(MetricId::inter_token,
                             seconds(now - last_token_) / static_cast<double>(tokens));
  }
  last_token_ = now;
}

}  // namespace cedar::gateway
