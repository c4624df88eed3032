#include "actors/system.h"

#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>

#include <thread>
#include <utility>

#include "actors/local_engines.h"
#include "actors/message_types.h"
#include "actors/system_impl.h"
#include "core/check.h"
#include "core/log.h"
#include "transport/loopback.h"

namespace cedar::actors {

using namespace std::chrono_literals;

void end_actor(const caf::strong_actor_ptr& actor) {
  if (!actor) return;
  caf::anon_send<caf::message_priority::high>(
      caf::actor_cast<caf::actor>(actor),
      caf::exit_msg{caf::actor_addr{}, caf::exit_reason::user_shutdown});
}

ActorClient::ActorClient(caf::actor_system& system, RouterActor router,
                         std::shared_ptr<LoadBoard> board,
                         std::shared_ptr<const RequestList> requests)
    : system_(system),
      router_(std::move(router)),
      board_(std::move(board)),
      requests_(std::move(requests)) {}

RequestId ActorClient::submit(GenerateRequest request, std::shared_ptr<StreamSink> sink) {
  const RequestId id{next_id_.fetch_add(1)};
  request.decode.id = id;
  caf::anon_send(router_, SubmitRequest{std::make_shared<const GenerateRequest>(std::move(request)),
                                        std::make_shared<OnceSink>(std::move(sink))});
  return id;
}

// At normal priority: a cancellation must not overtake the request it is meant for.
void ActorClient::cancel(RequestId id) { caf::anon_send(router_, CancelRequest{id}); }

Stats ActorClient::stats() const {
  Stats stats;
  stats.ready = board_->ready;
  stats.queued = board_->queued;
  stats.running = board_->running;
  stats.encoder_requests = board_->encoder_requests;
  stats.encoder_queued_tokens = board_->encoder_queued_tokens;
  stats.encoder_free_blocks = board_->encoder_free_blocks;
  stats.decoder_sequences = board_->decoder_sequences;
  stats.decoder_free_blocks = board_->decoder_free_blocks;
  stats.decoder_total_blocks = board_->decoder_total_blocks;
  stats.engram = board_->engram();
  stats.cache_blocks = board_->cache_blocks;
  stats.cache_bytes = board_->cache_bytes;
  stats.live_actors = static_cast<int64_t>(system_.registry().running());
  const auto since = board_->stalled_since.load();
  if (since != std::chrono::steady_clock::time_point{}) {
    stats.stalled = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - since);
  }
  return stats;
}

std::vector<RequestInfo> ActorClient::requests() const {
  return requests_ ? requests_->list() : std::vector<RequestInfo>();
}

System::Impl::Impl(const SystemOptions& options)
    : trace(options.trace),
      metrics(options.metrics),
      board_metrics(report_board(board, *options.metrics)) {
  auto loopback = transport::make_loopback_transport({}, transport::make_loopback_hub());
  CEDAR_ASSERT(loopback.has_value(), loopback.error().message());
  transport = std::move(*loopback);
  plane = make_data_plane(*transport, "127.0.0.1");
  memory = std::make_shared<ExportMemory>(*transport);
  add_message_types(config);
  // Defaults of the library: at least four threads whatever the quota, and no limit on how long one actor
  // keeps a thread.
  config.set("scheduler.max-threads", static_cast<size_t>(options.scheduler_threads));
  config.set("scheduler.max-throughput", static_cast<size_t>(options.max_throughput));
  system = std::make_unique<caf::actor_system>(config);
}

void System::Impl::start_router(const RouterOptions& options,
                                const LocalStagesOptions& stage_options, StageSpawners spawners) {
  const auto actor = system->spawn<Router>(options, board);
  router = caf::actor_cast<RouterActor>(actor);
  stages =
      system->spawn<LocalStages>(stage_options, std::move(spawners),
                                 std::vector<NodeListener>{caf::actor_cast<NodeListener>(actor)});
  client = std::make_unique<ActorClient>(*system, router, board, options.requests);
}

namespace {

/// Requests left after the message was handled; -1 when the router does not answer.
int64_t ask_to_drain(caf::actor_system& system, const RouterActor& router, bool end_sessions) {
  int64_t left = -1;
  caf::scoped_actor self(system);
  self->request(router, 2s, DrainAtom::value, end_sessions)
      .receive([&](int64_t count) { left = count; }, [](const caf::error&) {});
  return left;
}

}  // namespace

void drain_router(caf::actor_system& system, const RouterActor& router,
                  std::chrono::milliseconds grace) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  int64_t left = ask_to_drain(system, router, false);
  while (left > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(5ms);
    left = ask_to_drain(system, router, false);
  }
  if (left > 0) {
    log::info("system", "cancelling requests that outlive the grace period", {{"requests", left}});
  }
  const auto hard_deadline = std::chrono::steady_clock::now() + 10s;
  while (left > 0 && std::chrono::steady_clock::now() < hard_deadline) {
    left = ask_to_drain(system, router, true);
    std::this_thread::sleep_for(2ms);
  }
}

void System::Impl::stop() {
  client.reset();
  // The router first: it tells every request.
  end_actor(caf::actor_cast<caf::strong_actor_ptr>(router));
  end_actor(caf::actor_cast<caf::strong_actor_ptr>(stages));
  destroy(router);
  destroy(stages);
  system->await_all_actors_done();
  // Its callbacks speak to actors.
  transport->shutdown();
  system.reset();
  memory.reset();
}

Result<std::unique_ptr<System>> System::start(std::shared_ptr<const engine::LoadedModel> model,
                                              const SystemOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  CEDAR_TRY(auto engines, make_local_engines(model, options.engine, {}, impl->memory));
  RouterOptions router;
  router.max_queued = options.max_queued;
  router.trace = options.trace;
  router.metrics = options.metrics;
  LocalStagesOptions stages;
  stages.encoder = engines.encoder_capacity;
  stages.decoder = engines.decoder_capacity;
  StageSpawners spawners =
      detached_stages(std::move(engines.encoder), std::move(engines.decoder), *impl);
  if (options.cache.bytes > 0) {
    stages.fingerprint = kv_fingerprint(*model, options.engine);
    spawners.cache = cache_spawner(options.cache, model->layout.block_bytes, impl->plane,
                                   impl->board, options.metrics);
  }
  impl->start_router(router, stages, std::move(spawners));
  return std::make_unique<System>(std::move(impl));
}

System::System(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

System::~System() { impl_->stop(); }

Client& System::client() { return *impl_->client; }

void System::drain(std::chrono::milliseconds grace) {
  drain_router(*impl_->system, impl_->router, grace);
}

}  // namespace cedar::actors
