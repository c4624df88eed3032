#include "actors/cluster_node.h"

#include <caf/send.hpp>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "actors/board_metrics.h"
#include "actors/decoder_face.h"
#include "actors/decoder_part.h"
#include "actors/encoder_face.h"
#include "actors/encoder_part.h"
#include "actors/index_spread.h"
#include "actors/local_engines.h"
#include "actors/membership.h"
#include "actors/message_types.h"
#include "actors/network.h"
#include "actors/node_metrics.h"
#include "actors/registry.h"
#include "actors/router.h"
#include "actors/service_directory.h"
#include "actors/system_impl.h"
#include "core/log.h"
#include "transport/calls.h"

namespace cedar::actors {

using namespace std::chrono_literals;

struct ClusterNode::Impl {
  ClusterNodeOptions options;
  ServiceDirectory directory;
  // Null at a gateway that is nothing else. Calls stop before the transport does, and before the services that answer
  // them end.
  std::unique_ptr<transport::Calls> calls;
  std::unique_ptr<transport::Transport> transport;
  DataPlane plane;
  std::vector<std::unique_ptr<NodeService>> services;
  std::shared_ptr<RemoteEngram> remote_engram;
  std::shared_ptr<ExportMemory> memory;
  std::shared_ptr<IndexSpread> index;  // with stages whose index keys may be spread
  std::shared_ptr<void> indexers;      // its view of the directory
  caf::actor_system_config config;
  std::unique_ptr<caf::actor_system> system;
  std::shared_ptr<LoadBoard> stage_board = std::make_shared<LoadBoard>();  // of the stages here
  std::shared_ptr<LoadBoard> board = std::make_shared<LoadBoard>();        // of the router
  std::shared_ptr<void> board_metrics;
  std::shared_ptr<void> node_metrics;  // reads what stands above
  std::atomic<int> registrations{0};   // at gateways
  std::atomic<bool> draining{false};
  RouterActor router;
  RegistryActor registry;
  std::vector<MembershipActor> memberships;
  LocalStagesActor stages;
  std::unique_ptr<ActorClient> client;

  explicit Impl(const ClusterNodeOptions& o)
      : options(o), board_metrics(report_board(stage_board, *o.system.metrics)) {}

  Status start(const std::shared_ptr<const engine::LoadedModel>& model);
  Status open_data_plane();
  std::shared_ptr<engine::EngramSource> engram_source(
      const std::shared_ptr<const engine::LoadedModel>& model);
  void start_system();
  Status open_door();
  MembershipActor join(const ClusterNodeOptions::Gateway& gateway);
  /// Work may come: of a node that is no gateway.
  bool listed() const { return registrations > 0 && !draining; }
  void report_metrics(monitoring::Metrics& metrics);
  void drain_stages(std::chrono::milliseconds grace);
  void end_actors();
};

Status ClusterNode::Impl::start(const std::shared_ptr<const engine::LoadedModel>& model) {
  LocalEngines engines;
  const std::optional<PipelinePlace>& encoder_place = options.encoder_pipeline;
  const std::optional<PipelinePlace>& decoder_place = options.decoder_pipeline;
  const bool encoder_face = encoder_place && encoder_place->is_face();
  const bool decoder_face = decoder_place && decoder_place->is_face();
  if (encoder_place && !encoder_face) {
    options.encoder = false;
    options.services.push_back([this, model](const DataPlane& own) {
      return encoder_part(
          {model, engram_source(model), options.system.engine, *options.encoder_pipeline})(own);
    });
  }
  if (decoder_place && !decoder_face) {
    options.decoder = false;
    options.services.push_back([this, model](const DataPlane& own) {
      return decoder_part(
          {model, engram_source(model), options.system.engine, *options.decoder_pipeline})(own);
    });
  }
  const bool has_stages = options.encoder || options.decoder;
  if (has_stages || options.cache || !options.services.empty()) CEDAR_CHECK_OK(open_data_plane());
  for (const NodeServiceFactory& make : options.services) {
    CEDAR_TRY(auto service, make(plane));
    services.push_back(std::move(service));
  }
  if (has_stages) {
    if (options.system.engine.index_service_min_tokens > 0) {
      IndexSpreadOptions spread;
      spread.scan_timeout = options.system.index_timeout;
      index = std::make_shared<IndexSpread>(*calls, spread);
      indexers = follow_indexers(directory, index);
      options.system.engine.index_service = index;
    }
    CEDAR_TRY(engines, make_local_engines(
                           model, options.system.engine,
                           {options.encoder && !encoder_face, options.decoder && !decoder_face},
                           memory, engram_source(model)));
  }
  FaceEngine face;
  if (encoder_face) {
    CEDAR_TRY(face, make_face_engine(model, engram_source(model), options.system.engine));
    engines.encoder_capacity = {options.system.engine.max_sequences, face.blocks,
                                model->layout.block_tokens};
  }
  if (decoder_face) {
    const auto make = [setup = DecoderFaceSetup{model, engram_source(model), options.system.engine,
                                                plane, *decoder_place}] {
      return make_decoder_face(setup);
    };
    // Now, so that its errors reach the user.
    CEDAR_TRY(auto made, make());
    engines.decoder_capacity = {options.system.engine.max_sequences, made->load().total_blocks,
                                model->layout.block_tokens};
    const auto first = std::make_shared<std::unique_ptr<DecoderEngine>>(std::move(made));
    engines.decoder = [first, make]() -> Result<std::unique_ptr<DecoderEngine>> {
      if (*first) return std::move(*first);
      return make();
    };
  }
  start_system();
  std::vector<NodeListener> listeners;
  if (options.door) {
    RouterOptions router_options;
    router_options.max_queued = options.system.max_queued;
    router_options.sum_reports = true;
    router_options.trace = options.system.trace;
    router_options.metrics = options.system.metrics;
    router_options.max_replacements = options.max_replacements;
    const auto actor = system->spawn<Router>(router_options, board);
    router = caf::actor_cast<RouterActor>(actor);
    listeners.push_back(caf::actor_cast<NodeListener>(actor));
    client = std::make_unique<ActorClient>(*system, router, board, router_options.requests);
    CEDAR_CHECK_OK(open_door());
  }
  if (!transport) return {};
  for (const ClusterNodeOptions::Gateway& gateway : options.gateways) {
    memberships.push_back(join(gateway));
    listeners.push_back(caf::actor_cast<NodeListener>(memberships.back()));
  }
  LocalStagesOptions stage_options;
  stage_options.node = options.name;
  stage_options.encoder = engines.encoder_capacity;
  stage_options.decoder = engines.decoder_capacity;
  for (const auto& service : services) stage_options.services.push_back(service->description());
  // A pipeline computes everything it reads.
  if (options.encoder && !encoder_face)
    stage_options.fingerprint = kv_fingerprint(*model, options.system.engine);
  stage_options.board = stage_board;
  stage_options.on_given_up = [tell = options.on_event](const char* stage) {
    if (tell) {
      tell(ClusterNodeOptions::Event::stage_given_up, stage,
           make_error(Errc::internal, "it died too often"));
    }
  };
  StageSpawners spawners =
      detached_stages(std::move(engines.encoder), std::move(engines.decoder), plane, memory,
                      stage_board, options.system.trace, options.system.metrics);
  if (encoder_face) {
    spawners.encoder = [setup = EncoderFaceSetup{face.make, plane, *options.encoder_pipeline,
                                                 stage_board, options.system.trace,
                                                 options.system.metrics}](caf::actor_system& host) {
      return EncoderStageActor(host.spawn<EncoderFace, caf::detached>(setup));
    };
    stage_options.encoder_complete = [this] {
      return find_route(directory, *options.encoder_pipeline, ServiceRole::encoder_part)
          .has_value();
    };
  }
  if (decoder_face) {
    stage_options.decoder_complete = [this] {
      return find_route(directory, *options.decoder_pipeline, ServiceRole::decoder_part)
          .has_value();
    };
  }
  if (options.cache) {
    spawners.cache = cache_spawner(options.system.cache, options.block_bytes, plane, stage_board,
                                   options.system.metrics);
  }
  stages = system->spawn<LocalStages>(stage_options, std::move(spawners), std::move(listeners));
  return {};
}

void ClusterNode::Impl::report_metrics(monitoring::Metrics& metrics) {
  if (transport) {
    report(transport->stats(), metrics);
    report(calls->stats(), metrics);
  }
  if (remote_engram) report(remote_engram->stats(), metrics);
  if (index) report(index->stats(), metrics);
  for (const auto& service : services) service->report(metrics);
  metrics.set(monitoring::MetricId::live_actors, static_cast<double>(system->registry().running()));
  // A gateway says so by itself, of all its nodes.
  if (!options.door) metrics.set(monitoring::MetricId::ready, listed() ? 1 : 0);
}

Status ClusterNode::Impl::open_data_plane() {
  transport::TransportOptions data = options.data;
  CEDAR_TRY(data.listen_host, numeric_address(data.listen_host));
  data.identity = {options.id, options.generation};
  data.cluster = options.cluster;
  calls = std::make_unique<transport::Calls>();
  calls->install(data);
  CEDAR_TRY(transport, transport::make_ucx_transport(data, options.ucx));
  calls->attach(*transport);
  plane = make_data_plane(*transport, data.listen_host);
  plane.calls = calls.get();
  plane.directory = &directory;
  memory = std::make_shared<ExportMemory>(*transport);
  return {};
}

/// Services, or the tables of the checkpoint. All stages of a node share one source: its cache, and its counters.
std::shared_ptr<engine::EngramSource> ClusterNode::Impl::engram_source(
    const std::shared_ptr<const engine::LoadedModel>& loaded) {
  const engine::LoadedModel& model = *loaded;
  if (!options.engram || model.engram.layers.empty()) return engine::local_engram_source(loaded);
  if (remote_engram) return remote_engram;
  const int64_t row_bytes = model.config.engram_head_dim + model.config.engram_head_dim / 32;
  RemoteEngramOptions engram = *options.engram;
  engram.board = stage_board;
  // Of the chunk that is computed, of the next one, and of prompts that came and went.
  const int64_t chunk_rows = options.system.engine.prefill_chunk_tokens * model.engram.columns *
                             static_cast<int64_t>(model.engram.layers.size());
  engram.ahead_bytes = std::max(engram.ahead_bytes, 4 * chunk_rows * row_bytes);
  remote_engram = std::make_shared<RemoteEngram>(plane, model.engram, row_bytes, engram);
  return remote_engram;
}

void ClusterNode::Impl::start_system() {
  add_message_types(config);
  NetworkOptions network;
  network.heartbeat_interval = options.heartbeat_interval;
  network.lost_after = options.lost_after;
  network.tls = !options.certificate.empty();
  network.certificate = options.certificate;
  network.key = options.key;
  network.authority = options.authority;
  configure_network(config, network);
  config.set("scheduler.max-threads", static_cast<size_t>(options.system.scheduler_threads));
  config.set("scheduler.max-throughput", static_cast<size_t>(options.system.max_throughput));
  system = std::make_unique<caf::actor_system>(config);
}

Status ClusterNode::Impl::open_door() {
  RegistryOptions door;
  door.gateway = options.name;
  door.cluster = options.cluster;
  door.secret = options.secret;
  door.model = {options.kv_layout, options.model_config, ""};
  door.lost_after = options.lost_after;
  door.metrics = options.system.metrics;
  door.self = {options.name, plane.endpoint, {}};
  for (const auto& service : services) door.self.services.push_back(service->description());
  door.on_directory = [this](std::vector<DirectoryEntry> entries) {
    directory.update(options.name, std::move(entries));
  };
  registry = system->spawn<Registry>(
      door, caf::actor_cast<NodeListener>(caf::actor_cast<caf::strong_actor_ptr>(router)));
  CEDAR_TRY(const std::string host, numeric_address(options.door->host));
  CEDAR_TRY([[maybe_unused]] const uint16_t port,
            publish(*system, registry, host, options.door->port));
  return {};
}

MembershipActor ClusterNode::Impl::join(const ClusterNodeOptions::Gateway& gateway) {
  MembershipOptions member;
  member.cluster = options.cluster;
  member.secret = options.secret;
  member.gateway = gateway.name;
  member.host = gateway.address.host;
  member.port = gateway.address.port;
  member.model = {options.kv_layout, options.model_config, options.weights};
  member.heartbeat_interval = options.heartbeat_interval;
  member.lost_after = options.lost_after;
  member.dial_interval = options.dial_interval;
  member.handshake_timeout = options.handshake_timeout;
  member.board = stage_board;
  member.on_directory = [this, name = gateway.name](std::vector<DirectoryEntry> entries) {
    directory.update(name, std::move(entries));
  };
  member.on_change = [this, tell = options.on_event, name = gateway.name, listed = false](
                         MembershipState state, const Error& error) mutable {
    using Event = ClusterNodeOptions::Event;
    if (state != MembershipState::registered) directory.lose(name);
    const bool is_listed = state == MembershipState::registered;
    if (is_listed != std::exchange(listed, is_listed)) registrations += is_listed ? 1 : -1;
    if (!tell) return;
    tell(state == MembershipState::registered ? Event::registered
         : state == MembershipState::refused  ? Event::refused
                                              : Event::lost,
         name, error);
  };
  return system->spawn<Membership>(std::move(member));
}

void ClusterNode::Impl::drain_stages(std::chrono::milliseconds grace) {
  draining = true;
  for (const MembershipActor& member : memberships) caf::anon_send(member, DrainAtom::value);
  const auto deadline = std::chrono::steady_clock::now() + grace;
  const auto busy = [&] {
    return stage_board->encoder_requests > 0 || stage_board->decoder_sequences > 0 ||
           stage_board->cache_leases > 0 || calls->stats().serving > 0 ||
           std::any_of(services.begin(), services.end(), [](const auto& s) { return s->busy(); });
  };
  // A request may be on its way from a gateway that has not heard of it yet; a stage hears of a service that drains with
  // its own next heartbeat.
  std::this_thread::sleep_for(std::min(
      grace, services.empty() ? options.heartbeat_interval / 2 : options.heartbeat_interval * 2));
  while (busy() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(5ms);
  if (busy()) {
    log::warn("node", "gives up work that outlives the grace period",
              {{"prompts", stage_board->encoder_requests.load()},
               {"answers", stage_board->decoder_sequences.load()}});
  }
  for (const MembershipActor& member : memberships) caf::anon_send(member, GoodbyeAtom::value);
}

void ClusterNode::Impl::end_actors() {
  if (!system) return;
  node_metrics.reset();
  const auto end = [](auto& actor) {
    end_actor(caf::actor_cast<caf::strong_actor_ptr>(actor));
    destroy(actor);
  };
  end(router);
  end(registry);
  for (MembershipActor& member : memberships) end(member);
  memberships.clear();
  end(stages);
  system->await_all_actors_done();
  if (index) {
    const IndexSpreadStats s = index->stats();
    log::info("index", "keys were spread",
              {{"blocks", s.appended_blocks},
               {"scans", s.scans},
               {"calls", s.scan_calls},
               {"failed_calls", s.failed_scan_calls},
               {"failed_appends", s.failed_append_calls}});
  }
  indexers.reset();
  if (calls) calls->shutdown();
  services.clear();
  // Its callbacks speak to actors.
  if (transport) transport->shutdown();
}

Result<std::unique_ptr<ClusterNode>> ClusterNode::start(
    std::shared_ptr<const engine::LoadedModel> model, const ClusterNodeOptions& options) {
  auto node = std::make_unique<ClusterNode>(std::make_unique<Impl>(options));
  CEDAR_CHECK_OK(node->impl_->start(model));
  node->impl_->node_metrics = options.system.metrics->collect(
      [impl = node->impl_.get()](monitoring::Metrics& metrics) { impl->report_metrics(metrics); });
  return node;
}

ClusterNode::ClusterNode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ClusterNode::~ClusterNode() {
  impl_->end_actors();
  impl_->client.reset();
  impl_->system.reset();
}

void ClusterNode::close() { impl_->end_actors(); }

Client& ClusterNode::client() { return *impl_->client; }

bool ClusterNode::ready() const {
  return impl_->client ? impl_->client->stats().ready : impl_->listed();
}

uint16_t ClusterNode::data_port() const { return impl_->plane.endpoint.port; }

void ClusterNode::drain(std::chrono::milliseconds grace) {
  if (impl_->router) drain_router(*impl_->system, impl_->router, grace);
  if (impl_->stages) impl_->drain_stages(impl_->router ? 0ms : grace);
}

}  // namespace cedar::actors
