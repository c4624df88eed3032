#include "actors/decoder_face.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actors/decoder_wire.h"
#include "actors/export_memory.h"
#include "actors/rank_link.h"
#include "actors/service_directory.h"
#include "actors/service_methods.h"
#include "core/log.h"
#include "engine/decode_rank.h"
#include "engine/request_checks.h"
#include "engine/writing.h"
#include "transport/calls.h"

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;
using Answer = Result<Bytes>;

/// A rank that is silent for so long is as good as lost; one that is lost is noticed much earlier.
constexpr auto kCallTime = 60s;
/// KV blocks on their way to other ranks; more wait.
constexpr int64_t kMostImportBytes = int64_t{64} << 20;

/// What the data plane's threads have to say to the face's.
class Inbox {
 public:
  struct Message {
    uint64_t number = 0;
    Answer answer;
  };
  void put(uint64_t number, Answer answer) {
    {
      std::lock_guard lock(mutex_);
      messages_.push_back({number, std::move(answer)});
    }
    changed_.notify_one();
  }
  /// Waits for one.
  Message take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !messages_.empty(); });
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  std::optional<Message> try_take() {
    std::lock_guard lock(mutex_);
    if (messages_.empty()) return {};
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
};

uint64_t microseconds_now() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

class DecoderFace final : public DecoderEngine {
 public:
  DecoderFace(const DataPlane& plane, PipelinePlace place)
      : plane_(plane), place_(std::move(place)), memory_(*plane.transport) {}
  ~DecoderFace() override {
    // The other ranks let go of everything when a later life of this face speaks to them, and the rows that are on their
    // way here have an inbox of their own.
    for (const auto& [id, sequence] : sequences_) tell_closed(sequence);
  }

  Status prepare(DecoderFaceSetup setup);

  Status reserve(engine::DecodeRequest request) override;
  Status import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) override;
  Status start(RequestId id, engine::Handoff handoff) override;
  void cancel(RequestId id) override;
  int64_t block_bytes() const override { return rank_->block_bytes(); }
  int64_t max_handoff_bytes() const override { return rank_->max_handoff_bytes(); }
  bool idle() const override;
  Result<std::vector<engine::TokenEvent>> step() override;
  engine::StepStats last_step() const override { return stats_; }
  engine::DecodeLoad load() const override;

 private:
  enum class Phase : uint8_t { reserved, replaying, decoding };
  struct Sequence {
    RequestId id;    // of the stage
    RequestId wire;  // in the ranks: no two lives of a face use the same
    std::vector<DataEndpoint> route;
    Phase phase = Phase::reserved;
    std::vector<TokenId> tokens;  // prompt and output
    Position read = 0;
    Position replay_next = 0;
    size_t group = 0;
    bool closing = false;  // cancelled while its rows were under way
  };
  struct Group {
    bool under_way = false;
    std::vector<RequestId> ids;  // of the step that is
  };

  Result<Sequence*> find(RequestId id);
  /// Asks the ranks behind, all at a time, and waits for every answer. The first error.
  Status ask_all(const std::vector<DataEndpoint>& route, transport::CallMethod method,
                 const std::function<Bytes(size_t rank)>& request);
  void tell_closed(const Sequence& sequence) const;
  void drop(std::map<RequestId, Sequence>::iterator at);
  void wait_for_imports(int64_t most_bytes);
  /// Steps whose rows a cancelled sequence was in hold its room; waits for one of them. False: there is none.
  bool wait_for_closing();
  engine::DecodeChunk next_chunk(size_t group, std::vector<RequestId>& ids);
  Status launch(size_t group);
  Status launch_idle_groups();
  Status collect(Inbox::Message message, std::vector<engine::TokenEvent>& events);
  void take_event(engine::TokenEvent event, std::vector<engine::TokenEvent>& events);

  const DataPlane plane_;
  const PipelinePlace place_;
  ExportMemory memory_;  // of states on their way to other ranks
  std::unique_ptr<engine::DecodeRank> rank_;
  std::unique_ptr<RankLink> link_;
  uint64_t face_ = microseconds_now();
  uint64_t newest_ = face_;
  std::map<RequestId, Sequence> sequences_;
  std::map<RequestId, RequestId> by_wire_;
  std::vector<Group> groups_;
  std::shared_ptr<Inbox> steps_ = std::make_shared<Inbox>();    // number: of the group
  std::shared_ptr<Inbox> imports_ = std::make_shared<Inbox>();  // number: wire id of the sequence
  // What reserve() has collected while it waited for room; for the next step().
  std::vector<engine::TokenEvent> late_events_;
  std::optional<Error> late_error_;
  engine::StepStats stats_;  // rows sent off in the last step()
  int64_t import_bytes_ = 0;
  std::map<RequestId, Error> failed_imports_;  // by wire id
};

Status DecoderFace::prepare(DecoderFaceSetup setup) {
  CEDAR_TRY(rank_, engine::DecodeRank::create(std::move(setup.model), std::move(setup.engram),
                                              setup.options));
  if (!rank_->first() || rank_->last()) {
    return make_error(Errc::invalid_argument, "a face has the first layers and not all");
  }
  CEDAR_TRY(link_, RankLink::create(plane_, rank_->max_out_bytes(), place_.depth + 1));
  groups_.resize(place_.depth);
  return {};
}

Result<DecoderFace::Sequence*> DecoderFace::find(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second.closing) {
    return make_error(Errc::not_found, "request " + std::to_string(id.value));
  }
  return &found->second;
}

Status DecoderFace::ask_all(const std::vector<DataEndpoint>& route, transport::CallMethod method,
                            const std::function<Bytes(size_t rank)>& request) {
  const auto inbox = std::make_shared<Inbox>();
  const auto deadline = transport::Clock::now() + kCallTime;
  for (size_t i = 0; i < route.size(); ++i) {
    plane_.calls->call(call_target(route[i]), method, request(i + 1), deadline,
                       [inbox, i](Answer answer) { inbox->put(i, std::move(answer)); });
  }
  Status first;
  for (size_t i = 0; i < route.size(); ++i) {
    const Inbox::Message message = inbox->take();
    if (!message.answer && first) first = message.answer.error();
  }
  return first;
}

Status DecoderFace::reserve(engine::DecodeRequest request) {
  const model::ModelConfig& config = rank_->model().config;
  CEDAR_CHECK_OK(engine::check_decode_request(config, rank_->options(), request));
  CEDAR_TRY(const std::vector<DataEndpoint> route,
            find_route(*plane_.directory, place_, ServiceRole::decoder_part));
  Sequence sequence;
  sequence.id = request.id;
  sequence.wire = RequestId(++newest_);
  sequence.route = route;
  sequence.tokens = engine::tokens_to_read(request);
  sequence.read = static_cast<Position>(sequence.tokens.size());
  const int64_t tokens = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
  Status opened = rank_->open(sequence.wire, sequence.read, tokens);
  while (!opened && opened.error().code == Errc::overloaded && wait_for_closing()) {
    opened = rank_->open(sequence.wire, sequence.read, tokens);
  }
  CEDAR_CHECK_OK(opened);
  SequenceOpening opening;
  opening.face = face_;
  opening.id = sequence.wire;
  opening.read = sequence.read;
  opening.tokens = tokens;
  const size_t last = place_.ranks.size() - 1;
  const Status all = ask_all(route, kOpenSequence, [&](size_t rank) {
    SequenceOpening own = opening;
    if (rank == last) own.request = request;
    return encode(own);
  });
  if (!all) {
    tell_closed(sequence);
    rank_->release(sequence.wire);
    return all;
  }
  by_wire_.emplace(sequence.wire, sequence.id);
  sequences_.emplace(sequence.id, std::move(sequence));
  return {};
}

Status DecoderFace::import_block(RequestId id, int64_t index, std::span<const std::byte> bytes) {
  CEDAR_TRY(const Sequence* const sequence, find(id));
  CEDAR_CHECK_OK(rank_->import_block(sequence->wire, index, bytes));
  const SequenceBlock message{face_, sequence->wire, index, bytes};
  const auto deadline = transport::Clock::now() + kCallTime;
  for (const DataEndpoint& rank : sequence->route) {
    wait_for_imports(kMostImportBytes - static_cast<int64_t>(bytes.size()));
    import_bytes_ += block_bytes();
    plane_.calls->call(call_target(rank), kImportSequenceBlock, encode(message), deadline,
                       [inbox = imports_, number = sequence->wire.value](Answer answer) {
                         inbox->put(number, std::move(answer));
                       });
  }
  return {};
}

void DecoderFace::wait_for_imports(int64_t most_bytes) {
  while (import_bytes_ > std::max<int64_t>(most_bytes, 0)) {
    const Inbox::Message message = imports_->take();
    import_bytes_ -= block_bytes();
    const RequestId wire(message.number);
    // A sequence that is gone has no use for what was on its way.
    if (!message.answer && by_wire_.contains(wire)) {
      failed_imports_.emplace(wire, message.answer.error());
    }
  }
}

Status DecoderFace::start(RequestId id, engine::Handoff handoff) {
  CEDAR_TRY(Sequence* const sequence, find(id));
  wait_for_imports(0);
  if (const auto failed = failed_imports_.extract(sequence->wire); !failed.empty()) {
    return failed.mapped();
  }
  const int64_t bytes = engine::serialised_bytes(handoff);
  CEDAR_TRY(Buffer state, memory_.allocate(bytes));
  const std::span<std::byte> target(state.data(), static_cast<size_t>(bytes));
  engine::serialise(handoff, target);
  CEDAR_TRY(const ExportMemory::Place place, memory_.locate(target));
  std::vector<Bytes> offers;
  for (size_t i = 0; i < sequence->route.size(); ++i) {
    transport::OfferRequest offer;
    offer.region = place.region->id();
    offer.ranges.push_back({place.offset, static_cast<uint64_t>(bytes), {}});
    offer.lease_deadline = transport::Clock::now() + kCallTime;
    // The memory stays as long as the lease.
    CEDAR_TRY(const auto descriptor,
              plane_.transport->offer(std::move(offer),
                                      [region = place.region](LeaseId, transport::LeaseEnd) {}));
    offers.push_back(transport::serialise(descriptor));
  }
  CEDAR_CHECK_OK(ask_all(sequence->route, kStartSequence, [&](size_t rank) {
    return encode(SequenceStart{face_, sequence->wire, offers[rank - 1]});
  }));
  const Position floor = sequence->read - handoff.boundary_rows;
  CEDAR_CHECK_OK(rank_->start(sequence->wire, std::move(handoff)));
  sequence->replay_next = floor;
  sequence->phase = Phase::replaying;
  // To the group with the fewest.
  std::vector<size_t> members(groups_.size());
  for (const auto& [other, known] : sequences_) {
    if (known.phase != Phase::reserved && &known != sequence) ++members[known.group];
  }
  sequence->group =
      static_cast<size_t>(std::min_element(members.begin(), members.end()) - members.begin());
  return {};
}

void DecoderFace::cancel(RequestId id) {
  const auto at = sequences_.find(id);
  if (at == sequences_.end()) return;
  const Group& group = groups_[at->second.group];
  const bool rows_under_way = at->second.phase != Phase::reserved && group.under_way &&
                              std::find(group.ids.begin(), group.ids.end(), id) != group.ids.end();
  if (rows_under_way) {
    at->second.closing = true;
  } else {
    drop(at);
  }
}

void DecoderFace::drop(std::map<RequestId, Sequence>::iterator at) {
  tell_closed(at->second);
  rank_->release(at->second.wire);
  failed_imports_.erase(at->second.wire);
  by_wire_.erase(at->second.wire);
  sequences_.erase(at);
}

void DecoderFace::tell_closed(const Sequence& sequence) const {
  const Bytes message = encode(SequenceClose{face_, sequence.wire});
  for (const DataEndpoint& rank : sequence.route) {
    // A rank that does not hear of it learns it from the next step.
    plane_.calls->call(call_target(rank), kCloseSequence, message,
                       transport::Clock::now() + kCallTime, [](const Answer&) {});
  }
}

bool DecoderFace::wait_for_closing() {
  const bool any = std::any_of(sequences_.begin(), sequences_.end(),
                               [](const auto& entry) { return entry.second.closing; });
  if (!any) return false;
  if (const Status collected = collect(steps_->take(), late_events_); !collected) {
    late_error_ = collected.error();
  }
  return true;
}

bool DecoderFace::idle() const {
  return std::all_of(sequences_.begin(), sequences_.end(),
                     [](const auto& entry) { return entry.second.phase == Phase::reserved; });
}

engine::DecodeChunk DecoderFace::next_chunk(size_t group, std::vector<RequestId>& ids) {
  const model::ModelConfig& config = rank_->model().config;
  engine::DecodeChunk chunk;
  const auto add = [&](Sequence& sequence, Position start, int64_t rows, bool replay) {
    engine::BatchSequence taken = engine::make_sequence(config, sequence.tokens, start, rows);
    chunk.parts.push_back({sequence.wire, start, replay, replay && start + rows == sequence.read,
                           std::move(taken.tokens), std::move(taken.history)});
    ids.push_back(sequence.id);
  };
  for (auto& [id, sequence] : sequences_) {
    if (sequence.group != group || sequence.closing || sequence.phase != Phase::decoding) continue;
    add(sequence, static_cast<Position>(sequence.tokens.size()) - 1, 1, false);
  }
  int64_t budget = rank_->options().prefill_chunk_tokens;
  for (auto& [id, sequence] : sequences_) {
    if (sequence.group != group || sequence.closing || sequence.phase != Phase::replaying) continue;
    const int64_t rows = std::min<int64_t>(budget, sequence.read - sequence.replay_next);
    if (rows == 0) continue;
    add(sequence, sequence.replay_next, rows, true);
    sequence.replay_next += rows;
    budget -= rows;
  }
  return chunk;
}

Status DecoderFace::launch(size_t number) {
  std::vector<RequestId> ids;
  engine::DecodeChunk chunk = next_chunk(number, ids);
  if (chunk.parts.empty()) return {};
  const auto deadline = transport::Clock::now() + kCallTime;
  const auto slot = link_->take_until(deadline);
  if (!slot) return make_error(Errc::unavailable, "the next rank fetched no rows in time");
  const auto bytes = rank_->run(chunk, {}, link_->memory(*slot));
  if (!bytes) {
    link_->give_back(*slot);
    return bytes.error();
  }
  for (const engine::DecodeRows& part : chunk.parts) {
    (part.replay ? stats_.replay_rows : stats_.decode_rows) +=
        static_cast<int64_t>(part.tokens.size());
  }
  Group& group = groups_[number];
  // All of them have the same route, unless a rank has begun a new life, which then knows nothing of some of them.
  const std::vector<DataEndpoint>& route = sequences_.at(ids.front()).route;
  PipelineStep message;
  message.face = face_;
  message.cut = rank_->model().range.last;
  message.route.assign(route.begin() + 1, route.end());
  message.newest = newest_;
  for (const auto& [wire, id] : by_wire_) message.live.push_back(wire);
  message.chunk = std::move(chunk);
  group.under_way = true;
  group.ids = std::move(ids);
  link_->send(
      *slot, *bytes, route.front(), kRunStep, deadline,
      [&message](Bytes descriptor) {
        message.rows = std::move(descriptor);
        return encode(message);
      },
      [inbox = steps_, number](Answer answer) { inbox->put(number, std::move(answer)); });
  return {};
}

Status DecoderFace::launch_idle_groups() {
  for (size_t number = 0; number < groups_.size(); ++number) {
    if (!groups_[number].under_way) CEDAR_CHECK_OK(launch(number));
  }
  return {};
}

Result<std::vector<engine::TokenEvent>> DecoderFace::step() {
  stats_ = {};
  std::vector<engine::TokenEvent> events = std::exchange(late_events_, {});
  if (const auto error = std::exchange(late_error_, std::nullopt)) return *error;
  CEDAR_CHECK_OK(launch_idle_groups());
  if (!events.empty()) return events;
  const bool any = std::any_of(groups_.begin(), groups_.end(),
                               [](const Group& group) { return group.under_way; });
  if (!any) return events;
  CEDAR_CHECK_OK(collect(steps_->take(), events));
  while (auto message = steps_->try_take()) CEDAR_CHECK_OK(collect(std::move(*message), events));
  // Before the caller is busy with the tokens.
  CEDAR_CHECK_OK(launch_idle_groups());
  return events;
}

Status DecoderFace::collect(Inbox::Message message, std::vector<engine::TokenEvent>& events) {
  Group& group = groups_[message.number];
  const std::vector<RequestId> ids = std::exchange(group.ids, {});
  group.under_way = false;
  auto sampled = message.answer ? decode_events(*message.answer)
                                : Result<std::vector<engine::TokenEvent>>(message.answer.error());
  // Those whose last replayed row was among the step's are decoded from now on.
  for (const RequestId id : ids) {
    const auto at = sequences_.find(id);
    if (at == sequences_.end()) continue;
    Sequence& sequence = at->second;
    if (sequence.closing) {
      drop(at);
    } else if (sequence.phase == Phase::replaying && sequence.replay_next == sequence.read) {
      sequence.phase = Phase::decoding;
    }
  }
  if (!sampled) return sampled.error();
  for (engine::TokenEvent& event : *sampled) take_event(std::move(event), events);
  return {};
}

void DecoderFace::take_event(engine::TokenEvent event, std::vector<engine::TokenEvent>& events) {
  const auto wire = by_wire_.find(event.id);
  if (wire == by_wire_.end()) return;
  const auto at = sequences_.find(wire->second);
  event.id = at->second.id;
  at->second.tokens.push_back(event.token.token);
  if (event.finish != engine::FinishReason::none) drop(at);
  events.push_back(std::move(event));
}

engine::DecodeLoad DecoderFace::load() const {
  engine::DecodeLoad load;
  load.sequences = static_cast<int32_t>(sequences_.size());
  load.free_slots = rank_->free_slots();
  load.free_blocks = rank_->free_blocks();
  load.total_blocks = rank_->total_blocks();
  return load;
}

}  // namespace

Result<std::unique_ptr<DecoderEngine>> make_decoder_face(DecoderFaceSetup setup) {
  auto face = std::make_unique<DecoderFace>(setup.plane, setup.place);
  CEDAR_CHECK_OK(face->prepare(std::move(setup)));
  return std::unique_ptr<DecoderEngine>(std::move(face));
}

}  // namespace cedar::actors
