#include "actors/encoder_part.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "actors/export_memory.h"
#include "actors/pipeline_wire.h"
#include "actors/rank_link.h"
#include "actors/service_methods.h"
#include "core/log.h"
#include "core/units.h"
#include "engine/prefill_rank.h"
#include "transport/calls.h"

namespace cedar::actors {
namespace {

using Answer = Result<std::vector<std::byte>>;
/// CallReply, where a copy is needed.
using SharedReply = std::shared_ptr<transport::CallReply>;

/// One call, in the order in which they came.
struct Job {
  std::optional<PipelineChunk> chunk;
  std::optional<PipelineRelease> release;
  SharedReply reply;
  transport::TimePoint deadline;
  size_t slot = 0;                // of a chunk's rows
  std::optional<Status> fetched;  // they are in the slot, or not to be had
};

/// What the last rank owes for a prompt.
struct Work {
  transport::TimePoint deadline;
  int64_t offered_blocks = 0;
  bool done = false;  // no more rows come
  Buffer state;       // exported
  std::set<LeaseId> leases;
  std::vector<SharedReply> releases;  // wait for the leases
};

/// Everything but the thread. Callbacks of the data plane hold it weakly: they may come after the part's end.
class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(const DataPlane& plane, PipelinePlace place)
      : plane_(plane),
        place_(std::move(place)),
        memory_(std::make_shared<ExportMemory>(*plane.transport)) {}

  Status prepare(EncoderPartSetup setup);
  void take(const transport::CallContext& context, std::span<const std::byte> request,
            transport::CallReply reply, bool is_chunk);
  void run();
  void stop();
  EncoderPartLoad load() const;

 private:
  void fetch(const std::shared_ptr<Job>& job);
  void run_chunk(Job& job);
  /// Also of a prompt that this rank does not know: the ranks behind may.
  void run_release(Job& job);
  Status check(const PipelineChunk& message);
  void forget_others(const PipelineChunk& message);
  Answer offer_parts(const PipelineChunk& message);
  Result<std::vector<std::byte>> offer(RequestId id, Work& work,
                                       std::span<const std::span<const std::byte>> parts);
  Status offer_state(RequestId id, Work& work, PipelineProgress& progress);
  void end_work(RequestId id, Work& work, bool revoke);
  void release_if_done(RequestId id);
  void publish();

  DataPlane plane_;
  PipelinePlace place_;
  // Of the part's thread.
  std::unique_ptr<engine::PrefillRank> rank_;
  std::shared_ptr<ExportMemory> memory_;  // of blocks and states
  std::unique_ptr<RankLink> link_;        // null at the last rank
  std::map<RequestId, Work> works_;       // at the last rank
  uint64_t face_ = 0;

  std::unique_ptr<ExportMemory> rows_memory_;
  Buffer rows_;  // slots that rows are fetched to
  ExportMemory::Place rows_place_;
  int64_t slot_bytes_ = 0;
  size_t slots_ = 0;

  // Between the data plane's threads, which put in, and the part's.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::deque<std::shared_ptr<Job>> jobs_;
  std::vector<std::pair<RequestId, LeaseId>> ended_;
  std::vector<size_t> free_slots_;
  EncoderPartLoad load_;
};

Status Core::prepare(EncoderPartSetup setup) {
  setup.options.block_memory = memory_;
  CEDAR_TRY(rank_, engine::PrefillRank::create(std::move(setup.model), std::move(setup.engram),
                                               setup.options));
  // One more than chunks are under way: an answer may be there before the slot is free again.
  slots_ = place_.depth + 1;
  slot_bytes_ = align_up(rank_->max_in_bytes(), Buffer::kAlignment);
  rows_memory_ = std::make_unique<ExportMemory>(*plane_.transport);
  CEDAR_TRY(rows_, rows_memory_->allocate(slot_bytes_ * static_cast<int64_t>(slots_)));
  CEDAR_TRY(rows_place_, rows_memory_->locate({rows_.data(), 1}));
  for (size_t slot = slots_; slot > 0; --slot) free_slots_.push_back(slot - 1);
  if (!rank_->last()) {
    CEDAR_TRY(link_, RankLink::create(plane_, rank_->max_out_bytes(), place_.depth + 1));
  }
  publish();
  return {};
}

void Core::take(const transport::CallContext& context, std::span<const std::byte> request,
                transport::CallReply reply, bool is_chunk) {
  auto job = std::make_shared<Job>();
  job->reply = std::make_shared<transport::CallReply>(std::move(reply));
  job->deadline = context.deadline;
  if (is_chunk) {
    auto message = decode_chunk(request);
    if (!message) return (*job->reply)(message.error());
    job->chunk = std::move(*message);
  } else {
    auto message = decode_release(request);
    if (!message) return (*job->reply)(message.error());
    job->release = std::move(*message);
  }
  {
    std::lock_guard lock(mutex_);
    if (is_chunk) {
      if (free_slots_.empty()) {
        return (*job->reply)(make_error(Errc::overloaded, "pipeline " + place_.name + ": rank " +
                                                              std::to_string(place_.rank) +
                                                              " has no slot for more rows"));
      }
      job->slot = free_slots_.back();
      free_slots_.pop_back();
    }
    jobs_.push_back(job);
  }
  if (is_chunk) {
    fetch(job);
  } else {
    wake_.notify_one();
  }
}

void Core::fetch(const std::shared_ptr<Job>& job) {
  // The region lives as long as someone may write to it, even without this object.
  const auto fetched = [weak = weak_from_this(), job,
                        region = rows_place_.region](const Status& status) {
    const auto core = weak.lock();
    if (!core) return;
    std::lock_guard lock(core->mutex_);
    job->fetched = status;
    core->wake_.notify_one();
  };
  auto source = transport::parse_descriptor(job->chunk->rows);
  if (source &&
      (source->ranges.size() != 1 || static_cast<int64_t>(source->bytes()) > slot_bytes_)) {
    source = make_error(Errc::invalid_argument, std::to_string(source->bytes()) +
                                                    " bytes of rows, a slot has " +
                                                    std::to_string(slot_bytes_));
  }
  if (!source) return fetched(source.error());
  transport::PullRequest pull;
  pull.source = std::move(*source);
  pull.target.push_back({rows_place_.region->id(),
                         rows_place_.offset + job->slot * static_cast<uint64_t>(slot_bytes_)});
  pull.deadline = job->deadline;
  const auto started = plane_.transport->pull(std::move(pull), fetched);
  if (!started) fetched(started.error());
}

void Core::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] {
      const bool ready = !jobs_.empty() && (!jobs_.front()->chunk || jobs_.front()->fetched);
      return stopped_ || ready || !ended_.empty();
    });
    if (stopped_) return;
    const auto ended = std::exchange(ended_, {});
    std::shared_ptr<Job> job;
    if (!jobs_.empty() && (!jobs_.front()->chunk || jobs_.front()->fetched)) {
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    const std::shared_ptr<const Job> next = jobs_.empty() ? nullptr : jobs_.front();
    lock.unlock();
    for (const auto& [id, lease] : ended) {
      const auto work = works_.find(id);
      if (work == works_.end()) continue;
      work->second.leases.erase(lease);
      release_if_done(id);
    }
    // Its Engram rows travel while this one is computed.
    if (job && next && next->chunk) rank_->prefetch(next->chunk->chunk);
    if (job && job->chunk) {
      run_chunk(*job);
    } else if (job) {
      run_release(*job);
    }
    publish();
    lock.lock();
    if (job && job->chunk) free_slots_.push_back(job->slot);
  }
}

void Core::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_all();
}

/// Whether the chunk may run, after what it says of other prompts was done.
Status Core::check(const PipelineChunk& message) {
  if (message.face < face_) {
    return make_error(Errc::stale_generation, "a later life of the face has sent rows");
  }
  face_ = message.face;
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

/// The face may have ended, or a release may have been lost.
void Core::forget_others(const PipelineChunk& message) {
  const bool same_face = message.face == face_;
  for (const RequestId id : rank_->prompts()) {
    const bool live = std::find(message.live.begin(), message.live.end(), id) != message.live.end();
    if (same_face && live) continue;
    const auto work = works_.find(id);
    if (work != works_.end()) {
      end_work(id, work->second, true);
    } else {
      rank_->release(id);
    }
  }
}

void Core::run_chunk(Job& job) {
  PipelineChunk& message = *job.chunk;
  const SharedReply reply = job.reply;
  if (!*job.fetched) return (*reply)(job.fetched->error());
  if (message.face >= face_) forget_others(message);
  if (const Status fits = check(message); !fits) return (*reply)(fits.error());
  const auto source = transport::parse_descriptor(message.rows);
  const std::span<const std::byte> in(rows_.data() + static_cast<int64_t>(job.slot) * slot_bytes_,
                                      source->bytes());
  if (rank_->last()) {
    const auto ran = rank_->run(message.chunk, {}, in, {});
    return (*reply)(ran ? offer_parts(message) : Answer(ran.error()));
  }
  const auto slot = link_->take_until(job.deadline);
  if (!slot) {
    return (*reply)(make_error(Errc::deadline_exceeded, "the next rank fetched no rows in time"));
  }
  const auto bytes = rank_->run(message.chunk, {}, in, link_->memory(*slot));
  if (!bytes) {
    link_->give_back(*slot);
    return (*reply)(bytes.error());
  }
  const DataEndpoint next = message.route.front();
  message.route.erase(message.route.begin());
  message.cut = rank_->model().range.last;
  link_->send(
      *slot, *bytes, next, kRunChunk, job.deadline,
      [&message](std::vector<std::byte> descriptor) {
        message.rows = std::move(descriptor);
        return encode(message);
      },
      [reply](Answer answer) { (*reply)(std::move(answer)); });
}

Answer Core::offer_parts(const PipelineChunk& message) {
  PipelineAnswer answer;
  answer.owner = plane_.endpoint;
  for (size_t i = 0; i < message.chunk.parts.size(); ++i) {
    const engine::PrefillRows& part = message.chunk.parts[i];
    Work& work = works_[part.id];
    work.deadline = transport::Clock::now() + message.remaining[i];
    PipelineProgress& progress = answer.parts.emplace_back();
    progress.id = part.id;
    progress.computed = part.end();
    progress.finished = part.finishes();
    progress.first_block = work.offered_blocks;
    const int64_t ready = rank_->blocks_ready(part.id);
    std::vector<std::span<const std::byte>> blocks;
    for (int64_t b = work.offered_blocks; b < ready; ++b)
      blocks.push_back(rank_->block(part.id, b));
    if (!blocks.empty()) {
      CEDAR_TRY(progress.blocks, offer(part.id, work, blocks));
    }
    work.offered_blocks = ready;
    if (part.finishes()) CEDAR_CHECK_OK(offer_state(part.id, work, progress));
  }
  return encode(answer);
}

Status Core::offer_state(RequestId id, Work& work, PipelineProgress& progress) {
  CEDAR_TRY(const engine::Handoff handoff, rank_->take_handoff(id));
  const int64_t bytes = engine::serialised_bytes(handoff);
  // Of its own: as many states may wait for their decoders as the pool has prompts.
  CEDAR_TRY(work.state, memory_->allocate(bytes));
  const std::span<std::byte> target(work.state.data(), static_cast<size_t>(bytes));
  engine::serialise(handoff, target);
  const std::span<const std::byte> part = target;
  CEDAR_TRY(progress.state, offer(id, work, {&part, 1}));
  work.done = true;
  return {};
}

Result<std::vector<std::byte>> Core::offer(RequestId id, Work& work,
                                           std::span<const std::span<const std::byte>> parts) {
  transport::OfferRequest request;
  ExportMemory::Place place;
  for (const std::span<const std::byte> part : parts) {
    CEDAR_TRY(place, memory_->locate(part));
    request.ranges.push_back({place.offset, part.size(), {}});
  }
  request.region = place.region->id();
  request.lease_deadline = work.deadline;
  const auto on_end = [weak = weak_from_this(), id, region = place.region](LeaseId lease,
                                                                           transport::LeaseEnd) {
    const auto core = weak.lock();
    if (!core) return;
    std::lock_guard lock(core->mutex_);
    core->ended_.emplace_back(id, lease);
    core->wake_.notify_one();
  };
  CEDAR_TRY(const auto descriptor, plane_.transport->offer(std::move(request), on_end));
  work.leases.insert(descriptor.lease);
  return transport::serialise(descriptor);
}

void Core::run_release(Job& job) {
  const PipelineRelease& message = *job.release;
  const SharedReply reply = job.reply;
  if (message.face < face_) {
    return (*reply)(make_error(Errc::stale_generation, "a later life of the face has sent rows"));
  }
  if (message.face > face_) return (*reply)(std::vector<std::byte>());  // none of its rows came
  if (!rank_->last()) {
    rank_->release(message.id);
    if (message.route.empty()) return (*reply)(make_error(Errc::invalid_argument, "no route"));
    PipelineRelease onward = message;
    onward.route.erase(onward.route.begin());
    return plane_.calls->call(call_target(message.route.front()), kReleasePrompt, encode(onward),
                              job.deadline,
                              [reply](Answer answer) { (*reply)(std::move(answer)); });
  }
  const auto work = works_.find(message.id);
  if (work == works_.end()) {
    rank_->release(message.id);
    return (*reply)(std::vector<std::byte>());
  }
  work->second.releases.push_back(reply);
  end_work(message.id, work->second, message.revoke || !work->second.done);
}

void Core::end_work(RequestId id, Work& work, bool revoke) {
  work.done = true;
  if (revoke) {
    // Reads under way end first; then the leases come back one by one.
    for (const LeaseId lease : work.leases) plane_.transport->revoke(lease);
  }
  release_if_done(id);
}

void Core::release_if_done(RequestId id) {
  const auto at = works_.find(id);
  if (at == works_.end() || !at->second.leases.empty() || !at->second.done) return;
  rank_->release(id);
  for (const SharedReply& reply : at->second.releases) (*reply)(std::vector<std::byte>());
  works_.erase(at);
}

void Core::publish() {
  std::lock_guard lock(mutex_);
  load_.prompts = static_cast<int64_t>(rank_->prompts().size());
  load_.free_blocks = rank_->free_blocks();
  load_.total_blocks = rank_->total_blocks();
}

EncoderPartLoad Core::load() const {
  std::lock_guard lock(mutex_);
  EncoderPartLoad load = load_;
  load.rows_in_slots = static_cast<int64_t>(slots_ - free_slots_.size());
  load.rows_out_slots = link_ ? static_cast<int64_t>(link_->slots_in_use()) : 0;
  return load;
}

class Part final : public EncoderPart {
 public:
  Part(const DataPlane& plane, const PipelinePlace& place, std::shared_ptr<Core> core)
      : calls_(*plane.calls),
        service_(part_of(place, ServiceRole::encoder_part, place.rank)),
        core_(std::move(core)) {
    const auto serve = [this](transport::CallMethod method, bool is_chunk) {
      calls_.serve(method, [core = core_, is_chunk](const transport::CallContext& context,
                                                    std::span<const std::byte> request,
                                                    transport::CallReply reply) {
        core->take(context, request, std::move(reply), is_chunk);
      });
    };
    serve(kRunChunk, true);
    serve(kReleasePrompt, false);
    thread_ = std::thread([core = core_] { core->run(); });
  }
  ~Part() override {
    calls_.serve(kRunChunk, {});
    calls_.serve(kReleasePrompt, {});
    core_->stop();
    thread_.join();
  }
  Service description() const override { return service_; }
  bool busy() const override { return core_->load().prompts > 0; }
  EncoderPartLoad load() const override { return core_->load(); }

 private:
  transport::Calls& calls_;
  Service service_;
  std::shared_ptr<Core> core_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<EncoderPart>> EncoderPart::start(const DataPlane& plane,
                                                        EncoderPartSetup setup) {
  const PipelinePlace place = setup.place;
  auto core = std::make_shared<Core>(plane, place);
  CEDAR_CHECK_OK(core->prepare(std::move(setup)));
  return std::unique_ptr<EncoderPart>(std::make_unique<Part>(plane, place, std::move(core)));
}

NodeServiceFactory encoder_part(EncoderPartSetup setup) {
  return
      [setup = std::move(setup)](const DataPlane& plane) -> Result<std::unique_ptr<NodeService>> {
        CEDAR_TRY(auto part, EncoderPart::start(plane, setup));
        return std::unique_ptr<NodeService>(std::move(part));
      };
}

}  // namespace cedar::actors
