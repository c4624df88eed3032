#include "actors/decoder_part.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/decoder_wire.h"
#include "actors/export_memory.h"
#include "actors/rank_link.h"
#include "actors/service_methods.h"
#include "core/log.h"
#include "engine/decode_rank.h"
#include "engine/writing.h"
#include "transport/calls.h"

namespace cedar::actors {
namespace {

using Bytes = std::vector<std::byte>;
using Answer = Result<Bytes>;

constexpr std::array kMethods = {kOpenSequence, kImportSequenceBlock, kStartSequence,
                                 kCloseSequence, kRunStep};

struct Job {
  transport::CallMethod method = 0;
  Bytes request;
  std::shared_ptr<transport::CallReply> reply;
  transport::TimePoint deadline;
};

class Part final : public DecoderPart {
 public:
  Part(const DataPlane& plane, const PipelinePlace& place)
      : plane_(plane),
        place_(place),
        service_(part_of(place, ServiceRole::decoder_part, place.rank)),
        memory_(*plane.transport) {}
  ~Part() override {
    for (const transport::CallMethod method : kMethods) plane_.calls->serve(method, {});
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  Status prepare(DecoderPartSetup setup);
  Service description() const override { return service_; }
  bool busy() const override { return load().sequences > 0; }
  DecoderPartLoad load() const override {
    std::lock_guard lock(mutex_);
    return load_;
  }

 private:
  void serve();
  void run();
  void handle(Job& job);
  Status accept(uint64_t face);
  Answer open(const Job& job);
  Answer import_block(const Job& job);
  Answer start(const Job& job);
  Answer close(const Job& job);
  void step(Job& job);
  Status check(const PipelineStep& message) const;
  Answer sample();
  /// Waits for the one range of a descriptor to be in the first bytes of `target`.
  Result<std::span<const std::byte>> fetch(std::span<const std::byte> descriptor, Buffer& target,
                                           transport::TimePoint deadline);
  void forget(RequestId id);
  void publish();

  const DataPlane plane_;
  const PipelinePlace place_;
  const Service service_;
  // Of the thread.
  ExportMemory memory_;
  std::unique_ptr<engine::DecodeRank> rank_;
  std::unique_ptr<RankLink> link_;                 // null at the last rank
  Buffer rows_;                                    // of the step that runs
  std::map<RequestId, engine::Writing> writings_;  // at the last rank
  uint64_t face_ = 0;

  // Between the data plane's threads, which put in, and this object's.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::deque<Job> jobs_;
  DecoderPartLoad load_;
  std::thread thread_;
};

Status Part::prepare(DecoderPartSetup setup) {
  CEDAR_TRY(rank_, engine::DecodeRank::create(std::move(setup.model), std::move(setup.engram),
                                              setup.options));
  if (rank_->first()) return make_error(Errc::invalid_argument, "the first layers are the face's");
  CEDAR_TRY(rows_, memory_.allocate(rank_->max_in_bytes()));
  if (!rank_->last()) {
    CEDAR_TRY(link_, RankLink::create(plane_, rank_->max_out_bytes(), place_.depth + 1));
  }
  publish();
  serve();
  thread_ = std::thread([this] { run(); });
  return {};
}

void Part::serve() {
  for (const transport::CallMethod method : kMethods) {
    plane_.calls->serve(method, [this, method](const transport::CallContext& context, Bytes request,
                                               transport::CallReply reply) {
      std::lock_guard lock(mutex_);
      jobs_.push_back({method, std::move(request),
                       std::make_shared<transport::CallReply>(std::move(reply)), context.deadline});
      wake_.notify_one();
    });
  }
}

void Part::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopped_ || !jobs_.empty(); });
    if (stopped_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    handle(job);
    publish();
    lock.lock();
  }
}

void Part::handle(Job& job) {
  switch (job.method) {
    case kOpenSequence: return (*job.reply)(open(job));
    case kImportSequenceBlock: return (*job.reply)(import_block(job));
    case kStartSequence: return (*job.reply)(start(job));
    case kCloseSequence: return (*job.reply)(close(job));
    default: return step(job);
  }
}

/// A later life of the face knows nothing of what an earlier one has opened.
Status Part::accept(uint64_t face) {
  if (face < face_) {
    return make_error(Errc::stale_generation, "a later life of the face has been here");
  }
  if (face > face_) {
    for (const RequestId id : rank_->sequences()) forget(id);
  }
  face_ = face;
  return {};
}

Answer Part::open(const Job& job) {
  CEDAR_TRY(SequenceOpening message, decode_opening(job.request));
  CEDAR_CHECK_OK(accept(message.face));
  std::optional<engine::Writing> writing;
  if (rank_->last()) {
    if (!message.request) return make_error(Errc::invalid_argument, "a sequence without a request");
    const model::ModelConfig& config = rank_->model().config;
    CEDAR_CHECK_OK(engine::check_decode_request(config, rank_->options(), *message.request));
    message.request->id = message.id;
    CEDAR_TRY(writing,
              engine::begin_writing(config, rank_->options(), std::move(*message.request)));
  }
  CEDAR_CHECK_OK(rank_->open(message.id, message.read, message.tokens));
  if (writing) writings_.emplace(message.id, std::move(*writing));
  return Bytes();
}

Answer Part::import_block(const Job& job) {
  CEDAR_TRY(const SequenceBlock message, decode_block(job.request));
  CEDAR_CHECK_OK(accept(message.face));
  CEDAR_CHECK_OK(rank_->import_block(message.id, message.index, message.bytes));
  return Bytes();
}

Answer Part::start(const Job& job) {
  CEDAR_TRY(const SequenceStart message, decode_start(job.request));
  CEDAR_CHECK_OK(accept(message.face));
  CEDAR_TRY(Buffer target, memory_.allocate(rank_->max_handoff_bytes()));
  CEDAR_TRY(const auto bytes, fetch(message.state, target, job.deadline));
  CEDAR_TRY(engine::Handoff handoff, engine::parse_handoff(bytes));
  CEDAR_CHECK_OK(rank_->start(message.id, std::move(handoff)));
  return Bytes();
}

Answer Part::close(const Job& job) {
  CEDAR_TRY(const SequenceClose message, decode_close(job.request));
  CEDAR_CHECK_OK(accept(message.face));
  forget(message.id);
  return Bytes();
}

Status Part::check(const PipelineStep& message) const {
  const LayerId first = rank_->model().range.first;
  if (message.cut != first) {
    return make_error(Errc::invalid_argument, "rows for layer " + std::to_string(message.cut) +
                                                  ", this rank begins with layer " +
                                                  std::to_string(first));
  }
  const size_t behind = place_.ranks.size() - place_.rank - 1;
  if (message.route.size() != behind) {
    return make_error(Errc::invalid_argument, "a route of " + std::to_string(message.route.size()) +
                                                  " ranks, " + std::to_string(behind) +
                                                  " are behind this one");
  }
  return {};
}

void Part::step(Job& job) {
  const auto reply = job.reply;
  auto decoded = decode_step(job.request);
  if (!decoded) return (*reply)(decoded.error());
  PipelineStep& message = *decoded;
  if (const Status good = accept(message.face); !good) return (*reply)(good.error());
  if (const Status good = check(message); !good) return (*reply)(good.error());
  // A close may have been lost with a connection.
  for (const RequestId id : rank_->sequences()) {
    const bool live = std::find(message.live.begin(), message.live.end(), id) != message.live.end();
    if (!live && id.value <= message.newest) forget(id);
  }
  const auto in = fetch(message.rows, rows_, job.deadline);
  if (!in) return (*reply)(in.error());
  if (rank_->last()) {
    const auto ran = rank_->run(message.chunk, *in, {});
    return (*reply)(ran ? sample() : Answer(ran.error()));
  }
  const auto slot = link_->take_until(job.deadline);
  if (!slot) {
    return (*reply)(make_error(Errc::deadline_exceeded, "the next rank fetched no rows in time"));
  }
  const auto bytes = rank_->run(message.chunk, *in, link_->memory(*slot));
  if (!bytes) {
    link_->give_back(*slot);
    return (*reply)(bytes.error());
  }
  const DataEndpoint next = message.route.front();
  message.route.erase(message.route.begin());
  message.cut = rank_->model().range.last;
  link_->send(
      *slot, *bytes, next, kRunStep, job.deadline,
      [&message](Bytes descriptor) {
        message.rows = std::move(descriptor);
        return encode(message);
      },
      [reply](Answer answer) { (*reply)(std::move(answer)); });
}

Answer Part::sample() {
  std::vector<engine::Writing*> sequences;
  for (const RequestId id : rank_->decided()) {
    const auto writing = writings_.find(id);
    if (writing == writings_.end()) {
      return make_error(Errc::internal,
                        "nothing is written of request " + std::to_string(id.value));
    }
    sequences.push_back(&writing->second);
  }
  if (sequences.empty()) return encode(std::vector<engine::TokenEvent>());
  CEDAR_TRY(
      const engine::WrittenTokens written,
      engine::write_tokens(rank_->context(), rank_->model().config, rank_->logits(), sequences));
  return encode(written.events);
}

Result<std::span<const std::byte>> Part::fetch(std::span<const std::byte> descriptor,
                                               Buffer& target, transport::TimePoint deadline) {
  struct Outcome {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Status> status;
  };
  CEDAR_TRY(transport::RegionDescriptor source, transport::parse_descriptor(descriptor));
  const auto bytes = static_cast<int64_t>(source.bytes());
  if (source.ranges.size() != 1 || bytes > target.bytes()) {
    return make_error(Errc::invalid_argument, std::to_string(bytes) + " bytes to fetch, room for " +
                                                  std::to_string(target.bytes()));
  }
  CEDAR_TRY(const ExportMemory::Place place, memory_.locate({target.data(), 1}));
  transport::PullRequest pull;
  pull.source = std::move(source);
  pull.target.push_back({place.region->id(), place.offset});
  pull.deadline = deadline;
  const auto outcome = std::make_shared<Outcome>();
  CEDAR_TRY([[maybe_unused]] const transport::TransferId transfer,
            plane_.transport->pull(std::move(pull), [outcome](const Status& status) {
              std::lock_guard lock(outcome->mutex);
              outcome->status = status;
              outcome->changed.notify_all();
            }));
  // It comes, at the latest a moment after the deadline, and nothing writes to the target after it.
  std::unique_lock lock(outcome->mutex);
  outcome->changed.wait(lock, [&] { return outcome->status.has_value(); });
  CEDAR_CHECK_OK(*outcome->status);
  return std::span<const std::byte>(target.data(), static_cast<size_t>(bytes));
}

void Part::forget(RequestId id) {
  rank_->release(id);
  writings_.erase(id);
}

void Part::publish() {
  std::lock_guard lock(mutex_);
  load_ = {static_cast<int64_t>(rank_->sequences().size()), rank_->free_blocks(),
           rank_->total_blocks()};
}

}  // namespace

Result<std::unique_ptr<DecoderPart>> DecoderPart::start(const DataPlane& plane,
                                                        DecoderPartSetup setup) {
  auto part = std::make_unique<Part>(plane, setup.place);
  CEDAR_CHECK_OK(part->prepare(std::move(setup)));
  return std::unique_ptr<DecoderPart>(std::move(part));
}

NodeServiceFactory decoder_part(DecoderPartSetup setup) {
  return
      [setup = std::move(setup)](const DataPlane& plane) -> Result<std::unique_ptr<NodeService>> {
        CEDAR_TRY(auto part, DecoderPart::start(plane, setup));
        return std::unique_ptr<NodeService>(std::move(part));
      };
}

}  // namespace cedar::actors
