#pragma once
// Encoders and decoders on transports of their own, sessions between them, and a router that hands out stages from a list.
// The links can be told to lose, hold or delay what they carry.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <caf/send.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <deque>
#include <numeric>

#include "actors/decoder_stage.h"
#include "actors/encoder_stage.h"
#include "actors/errors.h"
#include "actors/message_types.h"
#include "actors/session.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_engines.h"
#include "tests/transport/backends.h"

namespace cedar::actors {

/// What the test's router was asked, and what it has to give.
struct RouterScript {
  std::mutex mutex;
  std::deque<EncoderChoice> encoders;  // replacements, in order; then the error
  std::deque<DecoderChoice> decoders;
  std::atomic<int> encoders_replaced{0};
  std::atomic<int> decoders_replaced{0};
};

class ScriptedRouter final : public RouterActor::base {
 public:
  ScriptedRouter(caf::actor_config& config, std::shared_ptr<RouterScript> script)
      : typed_event_based_actor(config), script_(std::move(script)) {}
  behavior_type make_behavior() override {
    return {
        [](const SubmitRequest&) {},
        [](const CancelRequest&) {},
        [](const EncoderFree&) {},
        [this](const ReplaceEncoder&) -> caf::result<EncoderChoice> {
          ++script_->encoders_replaced;
          std::lock_guard lock(script_->mutex);
          return take<EncoderChoice>(script_->encoders, "encoder");
        },
        [this](const ReplaceDecoder&) -> caf::result<EncoderChoice, DecoderChoice> {
          ++script_->decoders_replaced;
          std::lock_guard lock(script_->mutex);
          auto encoder = pop(script_->encoders);
          auto decoder = pop(script_->decoders);
          if (!encoder || !decoder) return to_caf(make_error(Errc::unavailable, "none left"));
          return {*encoder, *decoder};
        },
        [](TickAtom) {},
        [](DrainAtom, bool) { return int64_t{0}; },
    };
  }

 private:
  template <class Choice>
  static std::optional<Choice> pop(std::deque<Choice>& choices) {
    if (choices.empty()) return {};
    Choice choice = choices.front();
    choices.pop_front();
    return choice;
  }
  template <class Choice>
  static caf::result<Choice> take(std::deque<Choice>& choices, const char* what) {
    auto choice = pop(choices);
    if (!choice) return to_caf(make_error(Errc::unavailable, std::string("no other ") + what));
    return *choice;
  }
  std::shared_ptr<RouterScript> script_;
};

class HandoffFixture : public testing::TestWithParam<test::TransportBackend> {
 protected:
  struct Node {
    test::Network::Node network;
    DataPlane plane;
    std::shared_ptr<LoadBoard> board = std::make_shared<LoadBoard>();
    std::shared_ptr<test::EngineScript> script = std::make_shared<test::EngineScript>();
    std::shared_ptr<ExportMemory> memory;
    EncoderStageActor encoder;
    DecoderStageActor decoder;
    KvCacheActor cache;
    transport::Transport& transport() { return *network.transport; }
    test::Faults& faults() { return *network.faults; }
    EncoderChoice as_encoder() const { return {encoder, plane.endpoint}; }
    DecoderChoice as_decoder() const { return {decoder, plane.endpoint}; }
  };
  using Sink = std::shared_ptr<test::CollectingSink>;

  HandoffFixture() {
    config_.set("scheduler.max-threads", size_t{2});
    add_message_types(config_);
    system_ = std::make_unique<caf::actor_system>(config_);
    router_ = system_->spawn<ScriptedRouter>(routes_);
  }

  void TearDown() override {
    for (const SessionActor& session : sessions_) end(session);
    sessions_.clear();
    for (const auto& node : nodes_) {
      end(node->encoder);
      end(node->decoder);
      end(node->cache);
    }
    cache_ = {};
    {
      std::lock_guard lock(routes_->mutex);
      routes_->encoders.clear();
      routes_->decoders.clear();
    }
    end(router_);
    router_ = RouterActor{};
    for (const auto& node : nodes_) {
      node->encoder = EncoderStageActor{};
      node->decoder = DecoderStageActor{};
      node->cache = KvCacheActor{};
    }
    system_->await_all_actors_done();
    wait_for_handshakes();
    for (const auto& node : nodes_) node->transport().shutdown();
    system_.reset();
  }

  /// A test may end while a decoder still connects, and UCX 1.13 does not survive the end of a listener just then
  /// (docs/transport.md).
  void wait_for_handshakes() {
    for (const auto& node : nodes_) {
      if (node->faults().cut) continue;
      (void)node->transport().allocate(64);  // whatever was posted before has run
      EXPECT_TRUE(test::eventually([&] {
        const auto stats = node->transport().stats();
        return stats.connections == stats.peers_ready;
      }));
    }
  }

  template <class Actor>
  static void end(const Actor& actor) {
    if (actor) {
      caf::anon_send<caf::message_priority::high>(
          caf::actor_cast<caf::actor>(actor),
          caf::exit_msg{caf::actor_addr{}, caf::exit_reason::user_shutdown});
    }
  }
  /// As a process that was killed: the actor is gone without a word, and so is its place in the network.
  void kill_encoder(Node& node) {
    node.faults().cut = true;
    end(node.encoder);
  }

  Node& add_node() {
    nodes_.push_back(std::make_unique<Node>());
    Node& node = *nodes_.back();
    transport::TransportOptions options = network_.options(static_cast<uint32_t>(nodes_.size()));
    options.ping_interval_ms = 100;
    options.ping_timeout_ms = 1000;
    if (change_options_) change_options_(options);
    node.network = network_.add(options);
    node.plane = make_data_plane(node.transport(), "127.0.0.1");
    node.memory = std::make_shared<ExportMemory>(node.transport());
    return node;
  }
  Node& add_encoder(const std::function<void(test::EngineScript&)>& change = {}) {
    Node& node = add_node();
    if (change) change(*node.script);
    node.encoder = system_->spawn<EncoderStage, caf::detached>(EncoderStageSetup{
        test::encoder_factory(node.script, node.memory), node.memory, node.plane, node.board});
    EXPECT_TRUE(test::eventually([&] { return node.board->encoder_free_blocks > 0; }));
    return node;
  }
  Node& add_decoder(const std::function<void(test::EngineScript&)>& change = {},
                    const OfferPullerOptions& pulls = {}) {
    Node& node = add_node();
    if (change) change(*node.script);
    node.decoder = system_->spawn<DecoderStage, caf::detached>(
        DecoderStageSetup{test::decoder_factory(node.script), node.plane, node.board, pulls});
    EXPECT_TRUE(test::eventually([&] { return node.board->decoder_free_blocks > 0; }));
    return node;
  }

  static GenerateRequest request(size_t prompt_tokens, int64_t max_new_tokens = 8) {
    GenerateRequest request;
    request.decode.id = RequestId{1};
    request.decode.prompt.resize(prompt_tokens);
    std::iota(request.decode.prompt.begin(), request.decode.prompt.end(),
              static_cast<TokenId>(10 + prompt_tokens));
    request.decode.max_new_tokens = max_new_tokens;
    return request;
  }
  Sink submit(const Node& encoder, const Node& decoder, GenerateRequest request) {
    const auto sink = std::make_shared<test::CollectingSink>();
    const auto deadline = std::chrono::steady_clock::now() + request.deadline;
    SessionSetup setup{std::make_shared<const GenerateRequest>(std::move(request)),
                       std::make_shared<OnceSink>(sink),
                       deadline,
                       encoder.as_encoder(),
                       decoder.as_decoder(),
                       router_,
                       max_replacements_,
                       cache_};
    setup.lookup_timeout = lookup_timeout_;
    sessions_.push_back(system_->spawn<Session>(std::move(setup)));
    return sink;
  }
  void cancel(size_t session) {
    caf::anon_send<caf::message_priority::high>(sessions_[session], EndSession{Errc::cancelled});
  }
  void may_replace_with_encoder(const Node& node) {
    std::lock_guard lock(routes_->mutex);
    routes_->encoders.push_back(node.as_encoder());
  }
  void may_replace_with_decoder(const Node& node) {
    std::lock_guard lock(routes_->mutex);
    routes_->decoders.push_back(node.as_decoder());
  }

  /// The prompt comes back and then the end token, as the scripted decoder answers.
  static std::vector<TokenId> answer_of(const GenerateRequest& request) {
    std::vector<TokenId> answer = request.decode.prompt;
    answer.push_back(1);
    if (static_cast<int64_t>(answer.size()) > request.decode.max_new_tokens) {
      answer.resize(static_cast<size_t>(request.decode.max_new_tokens));
    }
    return answer;
  }
  static void expect_answer(const Sink& sink, const GenerateRequest& request) {
    const auto end = sink->wait_end(std::chrono::seconds(30));
    ASSERT_TRUE(end);
    ASSERT_FALSE(end->error) << end->error->message();
    EXPECT_EQ(sink->tokens(), answer_of(request));
    EXPECT_EQ(sink->finishes(), 1);
  }
  static Error error_of(const Sink& sink) {
    const auto end = sink->wait_end(std::chrono::seconds(30));
    if (!end || !end->error) return make_error(Errc::ok, "no error");
    return *end->error;
  }

  /// Every pool, slot, lease and transfer is as it was in the beginning, at every node that still lives.
  bool level() {
    for (const auto& node : nodes_) {
      const LoadBoard& board = *node->board;
      const auto stats = node->transport().stats();
      if (node->encoder && (board.encoder_requests != 0 || stats.leases_live != 0 ||
                            board.encoder_free_blocks != node->script->blocks)) {
        return false;
      }
      if (node->decoder &&
          (board.decoder_sequences != 0 || board.decoder_staging_slots != 0 ||
           stats.pulls_unfinished != 0 || board.decoder_free_blocks != node->script->blocks)) {
        return false;
      }
    }
    return true;
  }
  void expect_level() {
    EXPECT_TRUE(test::eventually([&] { return level(); }, std::chrono::seconds(20)));
    for (const auto& node : nodes_) EXPECT_EQ(node->script->bad_blocks, 0);
  }

  test::Network network_{GetParam()};
  std::function<void(transport::TransportOptions&)> change_options_;
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::shared_ptr<RouterScript> routes_ = std::make_shared<RouterScript>();
  RouterActor router_;
  CacheChoice cache_;  // of the sessions
  int32_t max_replacements_ = 3;
  std::chrono::milliseconds lookup_timeout_{10000};  // a busy machine is no reason for a miss
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<SessionActor> sessions_;
};

/// Links on which a pull takes its way over messages, and one on which it reads in place.
inline std::vector<test::TransportBackend> handoff_backends() {
  std::vector<test::TransportBackend> backends;
  for (const auto& backend : test::transport_backends()) {
    if (backend.name != "loopback_get") backends.push_back(backend);
  }
  return backends;
}

}  // namespace cedar::actors
