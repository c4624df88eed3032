#include "gateway/stream_response.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <utility>

#include "gateway/detached_answers.h"
#include "gateway/stream_registry.h"

namespace cedar::gateway {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{
    100};  // a long prompt has thousands of chunks

std::string field(std::string_view name, std::string_view json) {
  std::string text = ",\"";
  return text.append(name).append("\":").append(json);
}

std::string text_field(std::string_view name, std::string_view text) {
  return field(name, json_string(text));
}

std::string index_field(int64_t index) { return field("index", std::to_string(index)); }

}  // namespace

std::string new_event_id() {
  thread_local std::mt19937_64 generator(random_seed());
  char text[24];
  std::snprintf(text, sizeof text, "evt_%016llx", static_cast<unsigned long long>(generator()));
  return text;
}

std::string error_event(const ApiError& error, const std::string& client_event_id,
                        const std::string& extra) {
  std::string event = R"({"type":"error")" + text_field("event_id", new_event_id());
  if (!client_event_id.empty()) event += text_field("client_event_id", client_event_id);
  return event + extra + field("error", error_object(error)) + '}';
}

std::string protocol_error(std::string_view code, std::string_view message,
                           const std::string& client_event_id, const std::string& extra) {
  std::string event = R"({"type":"error")" + text_field("event_id", new_event_id());
  if (!client_event_id.empty()) event += text_field("client_event_id", client_event_id);
  return event + extra + R"(,"error":{"message":)" + json_string(message) +
         R"(,"type":"invalid_request_error","param":null,"code":)" + json_string(code) + "}}";
}

std::string no_such_event(const std::string& response_id, int64_t last_seq, int64_t newest_seq,
                          const std::string& client_event_id) {
  const std::string newest = std::to_string(newest_seq);
  const auto error = make_error(Errc::invalid_argument, "last_seq: the newest event is " + newest +
                                                            ", got " + std::to_string(last_seq));
  return error_event(to_api_error(error), client_event_id,
                     text_field("response_id", response_id) + field("newest_seq", newest));
}

StreamResponse::StreamResponse(GatewayContext& context, boost::asio::any_io_executor executor,
                               StreamResponseSetup setup, std::shared_ptr<FrameTarget> target)
    : context_(context),
      executor_(std::move(executor)),
      setup_(std::move(setup)),
      target_(std::move(target)),
      // Who will not come back needs only the numbers.
      log_(setup_.resumable ? context.options.stream.replay_max_bytes : 0),
      tokenizer_(context.card.tokenizer),
      credits_(setup_.credits),
      limited_(setup_.credits > 0),
      timer_(executor_),
      coalesce_timer_(executor_) {}

void StreamResponse::start(PreparedRequest request, KeyUse use) {
  choices_.resize(static_cast<size_t>(request.api.choices));
  send_token_ids_ = request.api.return_token_ids;
  send_logprobs_ = request.api.sampling.logprobs >= 0;
  std::string fields = field("created", std::to_string(std::time(nullptr)));
  fields += text_field("model", context_.card.name);
  fields += field("seed", std::to_string(request.seed));
  if (!setup_.client_event_id.empty())
    fields += text_field("client_event_id", setup_.client_event_id);
  add("response.created", std::move(fields));
  flush();
  generation_ = Generation::start(context_, executor_, std::move(request), shared_from_this(),
                                  std::move(use));
}

void StreamResponse::cancel(const FrameTarget* asker) {
  if (target_.get() != asker) return;
  if (ended_) return lift_credits();  // nothing to stop, but its place is wanted
  stop_generation();
}

void StreamResponse::stop_generation() {
  if (generation_) generation_->cancel();
}

// --- connections -----------------------------------------------------------------------------------------

void StreamResponse::detach(const FrameTarget* target, bool client_closed) {
  if (target_.get() != target) return;  // it has moved on already
  target_.reset();
  if (ended_) return lift_credits();
  if (client_closed || !setup_.resumable) {
    setup_.resumable = false;
    client_gone_ = true;
    return stop_generation();
  }
  if (generation_) generation_->set_wanted(false);
  expire_after(context_.options.stream.detach_grace);
  context_.detached->add(shared_from_this());
}

std::string StreamResponse::refusal(const StreamClaim& claim) const {
  const std::string named = text_field("response_id", id());
  if (!claim.resumes && claim.request_digest != setup_.request_digest) {
    return protocol_error("response_id_conflict",
                          "response_id: already names a response to a different request",
                          claim.client_event_id, named);
  }
  if (!claim.resumes && target_ && target_ != claim.target) {
    return protocol_error("response_in_use",
                          "another connection has this response; response.resume moves it",
                          claim.client_event_id, named);
  }
  const int64_t newest = log_.next_seq() - 1;
  if (claim.last_seq > newest) {
    return no_such_event(id(), claim.last_seq, newest, claim.client_event_id);
  }
  const bool has_it_already = !claim.resumes && target_ == claim.target;
  if (!has_it_already && claim.last_seq + 1 < log_.oldest_seq()) {
    return protocol_error("resume_gap", "the events before oldest_seq are no longer kept",
                          claim.client_event_id,
                          named + field("oldest_seq", std::to_string(log_.oldest_seq())));
  }
  return {};
}

void StreamResponse::attach(StreamClaim claim) {
  flush();
  if (std::string error = refusal(claim); !error.empty()) {
    if (target_ == claim.target) return claim.target->send(std::move(error));
    return claim.target->response_left(id(), std::move(error));
  }
  if (!claim.resumes && target_ == claim.target) return;  // a retry of what it has already
  if (target_ && target_ != claim.target) {
    target_->response_left(
        id(), protocol_error("stream_moved", "another connection has resumed this response", {},
                             text_field("response_id", id())));
  }
  for (int64_t seq = claim.last_seq + 1; seq < log_.next_seq(); ++seq) {
    claim.target->send(log_.event(seq));
  }
  if (settled_)
    return claim.target->response_left(id(), {});  // kept for its time, the connection is not
  target_ = std::move(claim.target);
  context_.detached->remove(*this);
  if (!ended_) timer_.cancel();
  if (limited_) {
    credits_ = setup_.credits - (log_.next_seq() - 1 - claim.last_seq);
    on_batch_end();
  }
  if (generation_) generation_->set_wanted(true);
}

void StreamResponse::give_up() {
  if (ended_ || target_) return;
  client_gone_ = true;
  stop_generation();
}

void StreamResponse::expire_after(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (error) return;
    if (!self->ended_) return self->give_up();
    if (!self->settled_) return self->lift_credits();
    self->context_.streams->remove(*self);
  });
}

// --- events ----------------------------------------------------------------------------------------------

void StreamResponse::add(std::string type, std::string fields) {
  const auto bytes = static_cast<int64_t>(sizeof(Pending) + fields.size());
  pending_.push_back({std::move(type), std::move(fields), false, {}, {}});
  hold(pending_.back(), bytes);
}

void StreamResponse::add_delta(std::string type, std::string fields, Choice& choice,
                               const std::string& text) {
  Pending* event = waiting_delta(type, fields);
  if (event == nullptr) {
    add(std::move(type), std::move(fields));
    event = &pending_.back();
    event->is_delta = true;
  }
  event->delta += text;
  auto bytes = static_cast<int64_t>(text.size());
  for (const TokenReport& report : choice.tokens) {
    bytes +=
        static_cast<int64_t>(sizeof report + report.token.top.size() * sizeof report.token.top[0]);
  }
  hold(*event, bytes);
  event->tokens.insert(event->tokens.end(), choice.tokens.begin(), choice.tokens.end());
  choice.tokens.clear();
}

StreamResponse::Pending* StreamResponse::waiting_delta(const std::string& type,
                                                       const std::string& fields) {
  // Each choice has one delta at most behind the last other event: the search is short.
  for (auto event = pending_.rbegin(); event != pending_.rend() && event->is_delta; ++event) {
    if (event->fields == fields) return event->type == type ? &*event : nullptr;
  }
  return nullptr;
}

void StreamResponse::hold(Pending& event, int64_t bytes) {
  event.bytes += bytes;
  held_bytes_ += bytes;
}

void StreamResponse::on_queued(int64_t position) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_queued_ < std::chrono::seconds(1)) return;
  last_queued_ = now;
  add("response.queued",
      field("position", std::to_string(position)) + text_field("stage", "encoder"));
}

void StreamResponse::on_prefill(int64_t computed, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  // The last one always: that the encoder is done is what follows.
  if (computed < total && now - last_progress_ < kProgressInterval) return;
  last_progress_ = now;
  add("response.progress", text_field("stage", "encoder") +
                               field("computed", std::to_string(computed)) +
                               field("total", std::to_string(total)));
}

void StreamResponse::on_prompt_read(const Usage& usage) {
  const std::string hit = std::to_string(usage.cached_tokens);
  add("response.in_progress",
      R"(,"usage":{"prompt_tokens":)" + std::to_string(usage.prompt_tokens) +
          R"(,"prompt_cache_hit_tokens":)" + hit + R"(,"prompt_cache_miss_tokens":)" +
          std::to_string(usage.prompt_tokens - usage.cached_tokens) + '}');
}

void StreamResponse::on_replay() { add("response.progress", text_field("stage", "replay")); }

void StreamResponse::on_piece(int64_t index, const TextPiece& piece) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
  for (const model::OutputSegment& segment : piece.segments) add_segment(index, segment);
}

void StreamResponse::add_segment(int64_t index, const model::OutputSegment& segment) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  const std::string call_fields =
      index_field(index) + field("call_index", std::to_string(segment.call_idx));
  const auto bytes = static_cast<int64_t>(segment.text.size());
  switch (segment.kind) {
    case model::OutputKind::reasoning:
      choice.reasoning_open = true;
      choice.reasoning_bytes += bytes;
      return add_delta("response.reasoning.delta", index_field(index), choice, segment.text);
    case model::OutputKind::content:
      if (choice.reasoning_open) close_text(index);
      choice.content_open = true;
      choice.content_bytes += bytes;
      return add_delta("response.content.delta", index_field(index), choice, segment.text);
    case model::OutputKind::call_begin: {
      close_text(index);
      choice.arguments.clear();
      const model::ToolName name = model::split_tool_name(segment.text);
      std::string fields = call_fields + text_field("call_id", choice.calls.of(segment.call_idx)) +
                           text_field("name", name.name);
      if (!name.name_space.empty()) fields += text_field("namespace", name.name_space);
      return add("response.tool_call.begin", std::move(fields));
    }
    case model::OutputKind::call_arguments:
      choice.arguments += segment.text;
      return add_delta("response.tool_call.arguments.delta", call_fields, choice, segment.text);
    case model::OutputKind::call_end:
      return add("response.tool_call.done",
                 call_fields + text_field("arguments", choice.arguments));
  }
}

void StreamResponse::close_text(int64_t index) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (std::exchange(choice.reasoning_open, false)) {
    add("response.reasoning.done",
        index_field(index) + field("text_bytes", std::to_string(choice.reasoning_bytes)));
  }
  if (std::exchange(choice.content_open, false)) {
    add("response.content.done",
        index_field(index) + field("text_bytes", std::to_string(choice.content_bytes)));
  }
}

void StreamResponse::on_choice_end(int64_t index, std::string_view finish_reason) {
  close_text(index);
  add("response.choice.done", index_field(index) + text_field("finish_reason", finish_reason));
  // The last tokens may have no text: the end of the answer, the rest of a tool call.
  pending_.back().tokens = std::exchange(choices_[static_cast<size_t>(index)].tokens, {});
}

void StreamResponse::on_end(EndStatus status, const Usage& usage,
                            const std::optional<ApiError>& error) {
  std::string_view shown = to_string(status);
  std::optional<ApiError> problem = error;
  if (status == EndStatus::cancelled && client_gone_) {
    shown = "failed";
    problem = http_error(499, "the client left");
    problem->type = "client_gone";
  }
  if (status == EndStatus::cancelled && too_slow_) {
    shown = "failed";
    problem = http_error(499, "too much waited for credits");
    problem->type = "client_too_slow";
  }
  std::string fields = text_field("status", shown) + field("usage", usage_json(usage));
  if (problem) fields += field("error", error_object(*problem));
  add("response.done", std::move(fields));
  ended_ = true;
  generation_.reset();
  context_.detached->remove(*this);
  // Nobody is there whom it could be too much for, or nobody wants the place to stay taken until it is read.
  if (!target_ || status == EndStatus::cancelled || status == EndStatus::failed) limited_ = false;
  flush();
  if (!settled_) expire_after(context_.options.stream.detach_grace);
}

void StreamResponse::settle() {
  if (std::exchange(settled_, true)) return;
  // The response stays for its time to live, its connection must not.
  if (const auto target = std::exchange(target_, nullptr)) target->response_left(id(), {});
  if (setup_.resumable && context_.options.stream.replay_ttl.count() > 0) {
    context_.streams->keep_finished(*this, log_.bytes());
    expire_after(context_.options.stream.replay_ttl);
  } else {
    context_.streams->remove(*this);
  }
}

void StreamResponse::on_batch_end() {
  // A reader that lags gets fewer, longer deltas: they merge until its socket has taken the rest.
  const bool lagging =
      target_ && target_->unsent_bytes() > context_.options.stream.merge_unsent_bytes;
  if (ended_ || !(lagging || coalesces())) flush();
  const bool too_much = limited_ && held_bytes_ > context_.options.stream.replay_max_bytes;
  if (!too_much || ended_ || std::exchange(too_slow_, true)) return;
  context_.metrics.add(monitoring::MetricId::slow_readers);
  stop_generation();
}

bool StreamResponse::coalesces() {
  const auto time = target_ ? target_->coalesce() : std::chrono::milliseconds(0);
  if (time.count() == 0 || pending_.empty()) return false;
  // Only deltas can become one, and the first of them is what a person waits for.
  const bool only_deltas = std::all_of(pending_.begin(), pending_.end(),
                                       [](const Pending& event) { return event.is_delta; });
  const auto due = last_delta_ + time;
  if (!only_deltas || std::chrono::steady_clock::now() >= due) return false;
  if (std::exchange(coalescing_, true)) return true;
  coalesce_timer_.expires_at(due);
  coalesce_timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    self->coalescing_ = false;
    if (!error) self->on_batch_end();
  });
  return true;
}

void StreamResponse::flush() {
  if (ended_ && context_.stopping) limited_ = false;
  while (!pending_.empty() && (!limited_ || credits_ > 0)) {
    const Pending event = std::move(pending_.front());
    pending_.pop_front();
    held_bytes_ -= event.bytes;
    if (limited_) --credits_;
    emit(event);
  }
  if (pending_.empty() && ended_) settle();
}

void StreamResponse::grant(const FrameTarget* asker, int64_t add) {
  if (target_.get() != asker) return;
  credits_ += std::min(add, kMaxCredits - std::min(credits_, kMaxCredits));
  on_batch_end();
}

void StreamResponse::lift_credits() {
  limited_ = false;
  flush();
}

void StreamResponse::emit(const Pending& pending) {
  std::string event = "{\"type\":" + json_string(pending.type) +
                      text_field("event_id", new_event_id()) + text_field("response_id", id()) +
                      field("seq", std::to_string(log_.next_seq())) + pending.fields;
  if (pending.is_delta) {
    event += text_field("delta", pending.delta);
    last_delta_ = std::chrono::steady_clock::now();
  }
  if (send_token_ids_ && !pending.tokens.empty())
    event += field("token_ids", token_ids_json(pending.tokens));
  if (send_logprobs_ && !pending.tokens.empty()) {
    event += field("logprobs", logprobs_json(ApiKind::chat, pending.tokens, *tokenizer_));
  }
  event += '}';
  if (target_) target_->send(event);
  log_.append(std::move(event));
}

}  // namespace cedar::gateway
