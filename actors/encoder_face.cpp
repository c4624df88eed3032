#include "actors/encoder_face.h"

#include <caf/send.hpp>

#include <algorithm>
#include <utility>

#include "actors/errors.h"
#include "actors/service_directory.h"
#include "actors/service_methods.h"
#include "core/log.h"
#include "engine/request_checks.h"

namespace cedar::actors {

using monitoring::MetricId;

namespace {

using namespace std::chrono_literals;

/// For an answer of ranks that only have to end leases.
constexpr auto kReleaseTime = 10s;

std::vector<uint8_t> as_octets(const std::vector<std::byte>& bytes) {
  const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
  return {first, first + bytes.size()};
}

uint64_t microseconds_now() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

template <class Message>
void tell(const caf::actor_addr& address, Message message) {
  if (const auto actor = caf::actor_cast<caf::actor>(address)) {
    caf::anon_send<caf::message_priority::high>(actor, std::move(message));
  }
}

}  // namespace

EncoderFace::EncoderFace(caf::actor_config& config, EncoderFaceSetup setup)
    : typed_event_based_actor(config), setup_(std::move(setup)) {}

EncoderFace::behavior_type EncoderFace::make_behavior() {
  if (const Status started = start(); !started) {
    log::error("encoder", "cannot start", {{"error", started.error().message()}});
    rank_.reset();
    quit(to_caf(started.error()));
  }
  publish_load();
  set_down_handler([this](caf::down_msg& down) {
    for (const RequestId id : index_.of(down.source)) cancel(works_.find(id));
  });
  return {
      [this](BeginPrefill& message) { begin(std::move(message)); },
      [this](const CancelWork& message) { cancel(message.attempt); },
      [](const LeaseReturned&) {},
      [this](StepAtom) { step(); },
      [this](const ChunkAnswered& message) { answered(message); },
      [this](const PromptReleased& message) { released(message.id); },
  };
}

Status EncoderFace::start() {
  CEDAR_TRY(rank_, setup_.make_rank());
  if (!rank_->first() || rank_->last()) {
    return make_error(Errc::invalid_argument, "a face has the first encoder layers and not all");
  }
  setup_.board->encoder_total_blocks = rank_->total_blocks();
  queue_ = std::make_unique<engine::PrefillQueue>(rank_->model().config);
  // A slot more than chunks under way: one of a chunk that has failed may still be read.
  CEDAR_TRY(link_, RankLink::create(setup_.plane, rank_->max_out_bytes(), setup_.place.depth + 1,
                                    [self = address()] { tell(self, StepAtom::value); }));
  face_ = microseconds_now();
  last_work_ = face_;
  return {};
}

void EncoderFace::on_exit() {
  // The ranks behind let go of everything when the next life of this face sends rows, or the leases end.
  works_.clear();
  waiting_.clear();
  queue_.reset();
  rank_.reset();
  link_.reset();
}

void EncoderFace::begin(BeginPrefill message) {
  const RequestId id{++last_work_};
  if (!index_.add(message, id)) {
    send(message.session,
         StageFailed{message.attempt,
                     make_error(Errc::invalid_argument, "the attempt is being worked on")});
    return;
  }
  Work& work = works_[id];
  work.deadline = transport::Clock::now() + message.remaining;
  work.begin = std::move(message);
  if (!waiting_.empty() || !try_submit(id)) waiting_.push_back(id);
  publish_load();
}

bool EncoderFace::try_submit(RequestId id) {
  Work& work = works_.at(id);
  const GenerateRequest& request = *work.begin.request;
  std::vector<TokenId> tokens = engine::tokens_to_read(request.decode);
  Status status = engine::check_prompt(rank_->model().config, tokens);
  if (status) status = rank_->open(id, static_cast<Position>(tokens.size()));
  if (status) {
    work.in_rank = true;
    engine::PrefillRequest prompt;
    prompt.id = id;
    prompt.tokens = std::move(tokens);
    prompt.images = request.images;
    queue_->add(std::move(prompt));
    schedule_step();
    return true;
  }
  const bool room_will_come = works_.size() > waiting_.size() + 1;
  if (status.error().code == Errc::overloaded && room_will_come) return false;
  fail(id, status.error());
  return true;
}

void EncoderFace::submit_waiting() {
  while (!waiting_.empty()) {
    const RequestId id = waiting_.front();
    waiting_.pop_front();
    if (!try_submit(id)) {
      waiting_.push_front(id);
      return;
    }
  }
}

void EncoderFace::step() {
  step_scheduled_ = false;
  if (chunks_.size() >= setup_.place.depth || queue_->idle()) return;
  // A part that drains is not listed any more, but goes on with what it has begun.
  if (auto route = find_route(*setup_.plane.directory, setup_.place, ServiceRole::encoder_part)) {
    route_ = std::move(*route);
  } else if (route_.empty()) {
    log::warn("encoder", "pipeline incomplete", {{"error", route.error().context}});
    const Error error = route.error();
    std::vector<RequestId> ids;
    for (const auto& [id, work] : works_) {
      if (!work.abandoned) ids.push_back(id);
    }
    for (const RequestId id : ids) fail(id, error);
    return;
  }
  const auto slot = link_->take();
  if (!slot) return;  // the link says when one is free
  const engine::PrefillQueue::Next next = queue_->next(rank_->options().prefill_chunk_tokens);
  if (const Status ran = run_chunk(*slot, next); !ran) {
    log::error("encoder", "step failed", {{"error", ran.error().message()}});
    setup_.metrics->add(MetricId::encoder_step_failures);
    for (const engine::PrefillRows& part : next.chunk.parts) fail(part.id, ran.error());
  }
  schedule_step();
  publish_load();
}

Status EncoderFace::run_chunk(size_t slot, const engine::PrefillQueue::Next& next) {
  const auto begin = transport::Clock::now();
  rank_->prefetch(queue_->peek(rank_->options().prefill_chunk_tokens));
  const auto bytes = rank_->run(next.chunk, next.images, {}, link_->memory(slot));
  if (!bytes) {
    link_->give_back(slot);
    return bytes.error();
  }
  const auto now = transport::Clock::now();
  const auto rows = static_cast<double>(next.chunk.rows());
  setup_.metrics->observe(MetricId::encoder_chunk_seconds,
                          std::chrono::duration<double>(now - begin).count());
  setup_.metrics->observe(MetricId::encoder_chunk_rows, rows);
  setup_.metrics->add(MetricId::encoder_rows, rows);
  if (setup_.trace) {
    setup_.trace->work(
        monitoring::Track::encoder, "chunk", begin, now,
        {{"rows", next.chunk.rows()}, {"requests", static_cast<int64_t>(next.chunk.parts.size())}});
  }
  PipelineChunk message;
  message.face = face_;
  message.cut = rank_->model().range.last;
  for (const auto& [id, work] : works_) {
    if (work.in_rank) message.live.push_back(id);
  }
  std::vector<RequestId>& ids = chunks_[++last_chunk_];
  transport::TimePoint deadline = now;
  for (const engine::PrefillRows& part : next.chunk.parts) {
    Work& work = works_.at(part.id);
    ++work.chunks;
    ids.push_back(part.id);
    deadline = std::max(deadline, work.deadline);
    message.remaining.push_back(
        std::chrono::duration_cast<std::chrono::milliseconds>(work.deadline - now));
  }
  message.chunk = next.chunk;
  message.route.assign(route_.begin() + 1, route_.end());
  link_->send(
      slot, *bytes, route_.front(), kRunChunk, deadline,
      [&message](std::vector<std::byte> descriptor) {
        message.rows = std::move(descriptor);
        return encode(message);
      },
      [self = address(), number = last_chunk_](Result<std::vector<std::byte>> answer) {
        tell(self, ChunkAnswered{number, std::make_shared<const Result<std::vector<std::byte>>>(
                                             std::move(answer))});
      });
  return {};
}

void EncoderFace::answered(const ChunkAnswered& message) {
  const auto chunk = chunks_.extract(message.number);
  if (chunk.empty()) return;
  for (const RequestId id : chunk.mapped()) --works_.at(id).chunks;
  auto answer = *message.answer ? decode_answer(**message.answer)
                                : Result<PipelineAnswer>(message.answer->error());
  if (answer) {
    for (const PipelineProgress& part : answer->parts) report(part, answer->owner);
  } else {
    // Rows behind those that have failed are refused, and with them their neighbours in the chunk, who may be read
    // elsewhere.
    const auto& ids = chunk.mapped();
    const bool was_lost =
        std::any_of(ids.begin(), ids.end(), [this](RequestId id) { return works_.at(id).failed; });
    if (was_lost) {
      answer = make_error(Errc::unavailable, "an earlier chunk failed: " + answer.error().context);
    }
    log::error("encoder", "a chunk failed", {{"error", answer.error().message()}});
    setup_.metrics->add(MetricId::encoder_step_failures);
  }
  for (const RequestId id : chunk.mapped()) {
    const auto entry = works_.find(id);
    if (entry == works_.end()) continue;
    if (!answer && !entry->second.abandoned) {
      fail(id, answer.error());
    } else if (entry->second.abandoned && entry->second.chunks == 0) {
      release(id, true);
    }
  }
  schedule_step();
  publish_load();
}

void EncoderFace::report(const PipelineProgress& part, const DataEndpoint& owner) {
  const auto entry = works_.find(part.id);
  if (entry == works_.end() || entry->second.abandoned) return;
  PrefillProgress progress;
  progress.attempt = entry->second.begin.attempt;
  progress.computed = part.computed;
  progress.finished = part.finished;
  progress.first_block = part.first_block;
  if (!part.blocks.empty()) progress.blocks = {as_octets(part.blocks), owner};
  if (!part.state.empty()) progress.state = {as_octets(part.state), owner};
  send(entry->second.begin.session, std::move(progress));
  if (!part.finished) return;
  entry->second.finished = true;
  release(part.id, false);
}

void EncoderFace::cancel(const Attempt& attempt) {
  if (const auto work = index_.find(attempt)) cancel(works_.find(*work));
}

void EncoderFace::cancel(Works::iterator entry) {
  if (entry == works_.end() || entry->second.abandoned) return;
  Work& work = entry->second;
  if (!work.in_rank) {
    std::erase(waiting_, entry->first);
    forget(entry);
    return publish_load();
  }
  work.abandoned = true;
  queue_->remove(entry->first);
  if (work.chunks == 0) release(entry->first, true);
}

void EncoderFace::fail(RequestId id, const Error& error) {
  const auto entry = works_.find(id);
  if (entry == works_.end() || entry->second.abandoned) return;
  send(entry->second.begin.session, StageFailed{entry->second.begin.attempt, error});
  entry->second.failed = true;
  cancel(entry);
}

/// Asks the ranks behind to let go of a prompt. Asked twice, the first answer counts.
void EncoderFace::release(RequestId id, bool revoke) {
  const auto now = transport::Clock::now();
  const auto deadline = revoke ? now + kReleaseTime : works_.at(id).deadline + kReleaseTime;
  const auto answer = [self = address(), id](const Result<std::vector<std::byte>>& /*nothing*/) {
    tell(self, PromptReleased{id});
  };
  PipelineRelease message;
  message.face = face_;
  message.id = id;
  message.revoke = revoke;
  if (route_.empty()) return answer(std::vector<std::byte>());  // nothing has been sent
  message.route.assign(route_.begin() + 1, route_.end());
  setup_.plane.calls->call(call_target(route_.front()), kReleasePrompt, encode(message), deadline,
                           answer);
}

void EncoderFace::released(RequestId id) {
  const auto entry = works_.find(id);
  if (entry == works_.end()) return;
  queue_->remove(id);
  rank_->release(id);
  forget(entry);
  submit_waiting();
  publish_load();
}

void EncoderFace::forget(Works::iterator entry) {
  using monitoring::WorkEnd;
  setup_.metrics->add(MetricId::encoder_prompts, entry->second.finished ? WorkEnd::finished
                                                 : entry->second.failed ? WorkEnd::failed
                                                                        : WorkEnd::abandoned);
  index_.remove(entry->second.begin, entry->first);
  works_.erase(entry);
}

void EncoderFace::schedule_step() {
  if (step_scheduled_) return;
  step_scheduled_ = true;
  send(this, StepAtom::value);
}

void EncoderFace::publish_load() {
  if (!rank_) return;
  LoadBoard& board = *setup_.board;
  board.encoder_requests = static_cast<int64_t>(works_.size());
  board.encoder_queued_tokens = queue_->rows_left();
  board.encoder_free_blocks = rank_->free_blocks();
}

Result<FaceEngine> make_face_engine(std::shared_ptr<const engine::LoadedModel> model,
                                    std::shared_ptr<engine::EngramSource> engram,
                                    const engine::EngineOptions& options) {
  const auto make = [model = std::move(model), engram = std::move(engram), options] {
    return engine::PrefillRank::create(model, engram, options);
  };
  CEDAR_TRY(auto made, make());
  FaceEngine face;
  face.blocks = made->total_blocks();
  const auto first = std::make_shared<std::unique_ptr<engine::PrefillRank>>(std::move(made));
  face.make = [first, make]() -> Result<std::unique_ptr<engine::PrefillRank>> {
    if (*first) return std::move(*first);
    return make();
  };
  return face;
}

}  // namespace cedar::actors
