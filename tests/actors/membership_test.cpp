// Nodes and gateways, each an actor system of its own, over the loopback interface.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <caf/io/middleman.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>

#include <mutex>

#include "actors/errors.h"
#include "actors/membership.h"
#include "actors/network.h"
#include "actors/registry.h"
#include "actors/secret_proof.h"
#include "actors/service_directory.h"
#include "tests/support/certificates.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_directory.h"

namespace cedar::actors {
namespace {

using test::eventually;
using testing::HasSubstr;
using namespace std::chrono_literals;

/// What a router would hear.
struct Heard {
  std::mutex mutex;
  std::vector<std::string> events;  // "+name generation", "-name generation"
  std::map<std::string, NodeDescription> nodes;
  std::map<std::string, NodeReport> reports;

  std::string joined() {
    std::lock_guard lock(mutex);
    std::string names;
    for (const auto& [name, node] : nodes) names += name + ' ';
    return names;
  }
  std::vector<std::string> so_far() {
    std::lock_guard lock(mutex);
    return events;
  }
  bool has(const std::string& event) {
    const auto all = so_far();
    return std::find(all.begin(), all.end(), event) != all.end();
  }
};

class Recorder final : public NodeListener::base {
 public:
  Recorder(caf::actor_config& config, std::shared_ptr<Heard> heard)
      : typed_event_based_actor(config), heard_(std::move(heard)) {}
  behavior_type make_behavior() override {
    return {
        [this](NodeJoined& message) {
          std::lock_guard lock(heard_->mutex);
          heard_->events.push_back('+' + message.node.name + ' ' +
                                   std::to_string(message.node.generation));
          heard_->nodes[message.node.name] = message.node;
        },
        [this](const NodeLeft& message) {
          std::lock_guard lock(heard_->mutex);
          heard_->events.push_back('-' + message.name + ' ' + std::to_string(message.generation));
          heard_->nodes.erase(message.name);
        },
        [this](const NodeReport& message) {
          std::lock_guard lock(heard_->mutex);
          heard_->reports[message.name] = message;
        },
    };
  }

 private:
  std::shared_ptr<Heard> heard_;
};

class IdleEncoder final : public EncoderStageActor::base {
 public:
  using EncoderStageActor::base::base;
  behavior_type make_behavior() override {
    return {[](const BeginPrefill&) {}, [](const CancelWork&) {}, [](const LeaseReturned&) {}};
  }
};

NetworkOptions quick_network() {
  NetworkOptions network;
  network.heartbeat_interval = 50ms;
  network.lost_after = 400ms;
  return network;
}

void end(const caf::actor& actor) {
  caf::anon_send(actor, caf::exit_msg{caf::actor_addr{}, caf::exit_reason::user_shutdown});
}

class Gateway {
 public:
  explicit Gateway(uint16_t wanted_port = 0, RegistryOptions options = {},
                   const NetworkOptions& network = quick_network()) {
    configure_network(config_, network);
    config_.set("scheduler.max-threads", size_t{1});
    system_ = std::make_unique<caf::actor_system>(config_);
    if (options.gateway.empty()) options.gateway = "gw";
    if (options.cluster.empty()) options.cluster = "test";
    options.lost_after = network.lost_after;
    recorder_ = system_->spawn<Recorder>(heard);
    door_ = system_->spawn<Registry>(options, recorder_);
    const auto bound = publish(*system_, door_, "127.0.0.1", wanted_port);
    EXPECT_TRUE(bound) << bound.error().message();
    if (bound) port = *bound;
  }
  ~Gateway() {
    system_->middleman().unpublish(caf::actor_cast<caf::actor>(door_), port);
    end(caf::actor_cast<caf::actor>(door_));
    end(caf::actor_cast<caf::actor>(recorder_));
    destroy(door_);
    destroy(recorder_);
  }
  std::shared_ptr<Heard> heard = std::make_shared<Heard>();
  uint16_t port = 0;

 private:
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  NodeListener recorder_;
  RegistryActor door_;
};

struct NodeSetup {
  std::string name = "e1";
  uint32_t id = 7;
  uint64_t generation = 100;
  std::string cluster = "test";
  std::string secret;
  std::string gateway = "gw";
  ModelIdentity model;
  NetworkOptions network = quick_network();
  std::vector<Service> services;
  bool with_stage = true;
};

class Node {
 public:
  Node(uint16_t port, const NodeSetup& setup = {}) {
    configure_network(config_, setup.network);
    config_.set("scheduler.max-threads", size_t{1});
    system_ = std::make_unique<caf::actor_system>(config_);
    encoder_ = system_->spawn<IdleEncoder>();
    MembershipOptions options;
    options.cluster = setup.cluster;
    options.secret = setup.secret;
    options.gateway = setup.gateway;
    options.host = "127.0.0.1";
    options.port = port;
    options.model = setup.model;
    options.heartbeat_interval = setup.network.heartbeat_interval;
    options.lost_after = setup.network.lost_after;
    options.dial_interval = 50ms;
    options.refused_interval = 100ms;
    options.handshake_timeout = 1000ms;
    options.board = board;
    options.on_change = [this](MembershipState state, const Error& error) {
      if (state != MembershipState::registered) directory.lose("gw");
      std::lock_guard lock(mutex_);
      state_ = state;
      error_ = error;
    };
    options.on_directory = [this](auto entries) { directory.update("gw", std::move(entries)); };
    member_ = system_->spawn<Membership>(options);
    description_.name = setup.name;
    description_.id = NodeId(setup.id);
    description_.generation = setup.generation;
    description_.data_host = "127.0.0.1";
    description_.data_port = 7000;
    description_.services = setup.services;
    if (setup.with_stage) description_.encoder = encoder_;
    if (setup.with_stage) description_.encoder_capacity = {2, 30, 4};
    offer();
  }
  ~Node() {
    if (member_) end(caf::actor_cast<caf::actor>(member_));
    end(caf::actor_cast<caf::actor>(encoder_));
    destroy(member_);
    destroy(encoder_);
    destroy(description_.encoder);
  }
  void offer() { caf::anon_send(member_, NodeJoined{description_}); }
  void set_sequences(int64_t count) { description_.encoder_capacity.sequences = count; }
  template <class Atom>
  void tell(Atom atom) {
    caf::anon_send(member_, atom);
  }
  bool is(MembershipState state) {
    std::lock_guard lock(mutex_);
    return state_ == state;
  }
  Error error() {
    std::lock_guard lock(mutex_);
    return error_;
  }

  std::shared_ptr<LoadBoard> board = std::make_shared<LoadBoard>();
  ServiceDirectory directory;
  std::vector<std::string> knows(ServiceRole role = ServiceRole::engram) const {
    std::vector<std::string> names;
    for (const ServiceProvider& provider : directory.services(role)) {
      names.push_back(provider.node + ' ' + std::to_string(provider.endpoint.generation) + ' ' +
                      std::to_string(provider.service.shard) + '/' +
                      std::to_string(provider.service.shards));
    }
    return names;
  }

 private:
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  EncoderStageActor encoder_;
  MembershipActor member_;
  NodeDescription description_;
  std::mutex mutex_;
  MembershipState state_ = MembershipState::searching;
  Error error_;
};

void expect_refused(Node& node, Errc code, const std::vector<std::string>& words) {
  ASSERT_TRUE(eventually([&] { return node.is(MembershipState::refused); }))
      << node.error().message();
  EXPECT_EQ(node.error().code, code);
  for (const std::string& word : words) EXPECT_THAT(node.error().context, HasSubstr(word));
}

TEST(Membership, ANodeRegistersReportsItsLoadAndLeaves) {
  Gateway gateway;
  Node node(gateway.port);
  ASSERT_TRUE(eventually([&] { return gateway.heard->joined() == "e1 "; }));
  {
    std::lock_guard lock(gateway.heard->mutex);
    const NodeDescription& seen = gateway.heard->nodes["e1"];
    EXPECT_EQ(seen.id, NodeId(7));
    EXPECT_EQ(seen.generation, 100U);
    EXPECT_EQ(seen.data_host, "127.0.0.1");
    EXPECT_EQ(seen.data_port, 7000);
    EXPECT_EQ(seen.encoder_capacity.blocks, 30);
    EXPECT_TRUE(seen.encoder);
    EXPECT_FALSE(seen.decoder);
  }
  EXPECT_TRUE(eventually([&] { return node.is(MembershipState::registered); }));
  node.board->encoder_queued_tokens = 4711;
  EXPECT_TRUE(eventually([&] {
    std::lock_guard lock(gateway.heard->mutex);
    const NodeReport& report = gateway.heard->reports["e1"];
    return report.load.encoder_queued_tokens == 4711 && !report.draining;
  }));
  node.tell(DrainAtom::value);
  EXPECT_TRUE(eventually([&] {
    std::lock_guard lock(gateway.heard->mutex);
    return gateway.heard->reports["e1"].draining;
  }));
  node.tell(GoodbyeAtom::value);
  EXPECT_TRUE(eventually([&] { return gateway.heard->joined().empty(); }));
}

TEST(Membership, AWholeClusterNeedsNoOrder) {
  // A port that is free, and nobody listens.
  uint16_t port = 0;
  {
    Gateway gateway;
    port = gateway.port;
  }
  NodeSetup other;
  other.name = "d1";
  other.id = 8;
  Node first(port);
  Node second(port, other);
  EXPECT_TRUE(eventually([&] { return first.error().code == Errc::unavailable; }));
  Gateway gateway(port);
  EXPECT_TRUE(eventually([&] { return gateway.heard->joined() == "d1 e1 "; }));
}

TEST(Membership, StagesThatWereReplacedAreRegisteredAnew) {
  Gateway gateway;
  Node node(gateway.port);
  ASSERT_TRUE(eventually([&] { return node.is(MembershipState::registered); }));
  node.set_sequences(5);
  node.offer();
  EXPECT_TRUE(eventually([&] {
    std::lock_guard lock(gateway.heard->mutex);
    return gateway.heard->nodes["e1"].encoder_capacity.sequences == 5;
  }));
  EXPECT_FALSE(gateway.heard->has("-e1 100"));  // the same life
}

// B25: a gateway that was restarted empty has all its nodes again after a heartbeat.
TEST(Membership, ARestartedGatewayIsFoundAgain) {
  auto gateway = std::make_unique<Gateway>();
  const uint16_t port = gateway->port;
  Node node(port);
  ASSERT_TRUE(eventually([&] { return node.is(MembershipState::registered); }));
  gateway.reset();
  ASSERT_TRUE(eventually([&] { return node.is(MembershipState::searching); }));
  gateway = std::make_unique<Gateway>(port);
  EXPECT_TRUE(eventually([&] { return gateway->heard->joined() == "e1 "; }));
  NodeSetup late;
  late.name = "d2";
  late.id = 9;
  Node second(port, late);
  EXPECT_TRUE(eventually([&] { return gateway->heard->joined() == "d2 e1 "; }));
}

// B10: the next life of a node takes its place at once, and the former one stays out.
TEST(Membership, ALaterLifeReplacesAnEarlierOneAndNotTheReverse) {
  Gateway gateway;
  Node former(gateway.port);
  ASSERT_TRUE(eventually([&] { return gateway.heard->has("+e1 100"); }));
  NodeSetup setup;
  setup.generation = 101;
  Node later(gateway.port, setup);
  ASSERT_TRUE(eventually([&] { return gateway.heard->has("+e1 101"); }));
  EXPECT_TRUE(gateway.heard->has("-e1 100"));
  expect_refused(former, Errc::stale_generation, {"100", "101", "e1"});
  EXPECT_FALSE(gateway.heard->has("-e1 101"));
  EXPECT_TRUE(later.is(MembershipState::registered));
}

TEST(Membership, AWrongSecretIsRefused) {
  RegistryOptions options;
  options.secret = "right";
  Gateway gateway(0, options);
  NodeSetup setup;
  setup.secret = "wrong";
  Node node(gateway.port, setup);
  // The node notices first: whoever does not know its secret is no gateway of its cluster.
  expect_refused(node, Errc::invalid_argument, {"secret of cluster \"test\""});
  setup.name = "e2";
  setup.secret = "right";
  setup.id = 8;
  Node good(gateway.port, setup);
  EXPECT_TRUE(eventually([&] { return good.is(MembershipState::registered); }));
  EXPECT_TRUE(eventually([&] { return gateway.heard->joined() == "e2 "; }));
}

TEST(Membership, AnotherClusterOrGatewayIsRefused) {
  Gateway gateway;
  NodeSetup setup;
  setup.cluster = "other";
  Node node(gateway.port, setup);
  expect_refused(node, Errc::invalid_argument, {"\"other\"", "\"test\"", "e1", "gw"});
  setup.cluster = "test";
  setup.gateway = "another";
  Node lost(gateway.port, setup);
  expect_refused(lost, Errc::invalid_argument, {"is not gateway \"another\""});
}

// B13 (i): a node whose blocks look different stays out, the others go on.
TEST(Membership, AnotherLayoutOrModelIsRefusedWithBothValues) {
  RegistryOptions options;
  options.model = {"128 x 890", "aaaa", ""};
  Gateway gateway(0, options);
  NodeSetup setup;
  setup.model = {"128 x 890", "aaaa", "w1"};
  Node good(gateway.port, setup);
  ASSERT_TRUE(eventually([&] { return good.is(MembershipState::registered); }));
  setup.name = "e2";
  setup.id = 8;
  setup.model = {"64 x 890", "aaaa", "w1"};
  Node layout(gateway.port, setup);
  expect_refused(layout, Errc::unsupported, {"64 x 890", "128 x 890", "KV layout", "e2", "gw"});
  setup.model = {"128 x 890", "bbbb", "w1"};
  Node model(gateway.port, setup);
  expect_refused(model, Errc::unsupported, {"aaaa", "bbbb"});
  setup.model = {"128 x 890", "aaaa", "w2"};
  Node weights(gateway.port, setup);
  expect_refused(weights, Errc::unsupported, {"w1", "w2", "node \"e1\""});
  EXPECT_EQ(gateway.heard->joined(), "e1 ");
  EXPECT_TRUE(good.is(MembershipState::registered));
}

TEST(Membership, TwoNamesWithOneIdAreRefused) {
  Gateway gateway;
  Node node(gateway.port);
  ASSERT_TRUE(eventually([&] { return node.is(MembershipState::registered); }));
  NodeSetup setup;
  setup.name = "e2";
  Node same(gateway.port, setup);
  expect_refused(same, Errc::invalid_argument, {"\"e2\" has the same id as node \"e1\": 7"});
}

using Names = std::vector<std::string>;

NodeSetup engram_setup(const std::string& name, uint32_t id, int32_t shard) {
  NodeSetup setup;
  setup.name = name;
  setup.id = id;
  setup.services = {{ServiceRole::engram, shard, 2, ""}};
  setup.with_stage = false;
  return setup;
}

TEST(Membership, NodesLearnOfServicesAndOfTheirEnd) {
  RegistryOptions options;
  std::mutex mutex;
  std::vector<DirectoryEntry> listed;
  options.on_directory = [&](std::vector<DirectoryEntry> entries) {
    std::lock_guard lock(mutex);
    listed = std::move(entries);
  };
  Gateway gateway(0, options);
  Node stage(gateway.port);
  ASSERT_TRUE(eventually([&] { return stage.is(MembershipState::registered); }));
  EXPECT_EQ(stage.knows(), Names{});
  auto first = std::make_unique<Node>(gateway.port, engram_setup("g0", 20, 0));
  Node second(gateway.port, engram_setup("g1", 21, 1));
  const Names both{"g0 100 0/2", "g1 100 1/2"};
  EXPECT_TRUE(eventually([&] { return stage.knows() == both && second.knows() == both; }));
  {
    std::lock_guard lock(mutex);
    EXPECT_EQ(listed.size(), 2u);
  }
  // Who comes later knows at once.
  NodeSetup late = engram_setup("late", 22, 0);
  late.services = {{ServiceRole::indexer, 0, 1, ""}};
  Node third(gateway.port, late);
  EXPECT_TRUE(eventually([&] { return third.knows() == both; }));
  // A node of services only is a member without stages.
  {
    std::lock_guard lock(gateway.heard->mutex);
    EXPECT_FALSE(gateway.heard->nodes["g1"].encoder);
    EXPECT_FALSE(gateway.heard->nodes["g1"].decoder);
    EXPECT_EQ(gateway.heard->nodes["g1"].services.size(), 1u);
  }
  // What drains is not used any more, but is a member until it leaves.
  second.tell(DrainAtom::value);
  EXPECT_TRUE(eventually([&] { return stage.knows() == Names{"g0 100 0/2"}; }));
  EXPECT_TRUE(second.is(MembershipState::registered));
  first.reset();  // without goodbye
  EXPECT_TRUE(eventually([&] { return stage.knows().empty(); }));
  NodeSetup again = engram_setup("g0", 20, 0);
  again.generation = 101;
  Node next_life(gateway.port, again);
  EXPECT_TRUE(eventually([&] { return stage.knows() == Names{"g0 101 0/2"}; }));
}

TEST(Membership, ServicesAreKnownAfterTheGatewayWasRestarted) {
  auto gateway = std::make_unique<Gateway>();
  const uint16_t port = gateway->port;
  Node stage(port);
  Node service(port, engram_setup("g0", 20, 0));
  ASSERT_TRUE(eventually([&] { return stage.knows() == Names{"g0 100 0/2"}; }));
  gateway.reset();
  ASSERT_TRUE(eventually([&] { return stage.is(MembershipState::searching); }));
  EXPECT_EQ(stage.knows(), Names{"g0 100 0/2"});  // it needs no gateway
  RegistryOptions options;
  options.self = {"gw", {"127.0.0.1", 7001, 30, 5}, {{ServiceRole::engram, 1, 2, ""}}};
  gateway = std::make_unique<Gateway>(port, options);
  EXPECT_TRUE(eventually([&] { return stage.knows() == Names({"g0 100 0/2", "gw 5 1/2"}); }));
}

TEST(Membership, WhoHoldsNoWeightsIsNotComparedByThem) {
  Gateway gateway;
  NodeSetup setup;
  setup.model = {"", "", "w1"};
  Node stage(gateway.port, setup);
  ASSERT_TRUE(eventually([&] { return stage.is(MembershipState::registered); }));
  Node service(gateway.port, engram_setup("g0", 20, 0));
  EXPECT_TRUE(eventually([&] { return service.is(MembershipState::registered); }));
  NodeSetup other = engram_setup("e2", 21, 0);
  other.model.weights = "w2";
  Node stranger(gateway.port, other);
  expect_refused(stranger, Errc::unsupported, {"w1", "w2", "node \"e1\""});
}

// The registry alone, spoken to by hand.
class Door : public testing::Test {
 protected:
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  NodeListener recorder_;
  RegistryActor door_;

  void SetUp() override {
    config_.set("scheduler.max-threads", size_t{1});
    add_membership_types(config_);
    system_ = std::make_unique<caf::actor_system>(config_);
    recorder_ = system_->spawn<Recorder>(heard_);
    RegistryOptions options;
    options.gateway = "gw";
    options.cluster = "test";
    options.lost_after = 200ms;
    door_ = system_->spawn<Registry>(options, recorder_);
  }
  void TearDown() override {
    end(caf::actor_cast<caf::actor>(door_));
    end(caf::actor_cast<caf::actor>(recorder_));
    destroy(door_);
    destroy(recorder_);
  }
  template <class Reply, class Message>
  Result<Reply> ask(Message message) {
    caf::scoped_actor self(*system_);
    Result<Reply> result = make_error(Errc::internal, "no reply");
    self->request(door_, 10s, std::move(message))
        .receive([&](const Reply& reply) { result = reply; },
                 [&](const caf::error& error) { result = from_caf(error); });
    return result;
  }
  Hello hello(uint64_t generation, const std::string& nonce, const std::string& proof) {
    Hello message;
    message.node.name = "e1";
    message.node.generation = generation;
    message.nonce = nonce;
    message.proof = proof;
    return message;
  }
  std::string nonce() {
    const auto challenge = ask<Challenge>(Knock{kControlProtocol, "test", "e1", "n"});
    EXPECT_TRUE(challenge);
    return challenge ? challenge->nonce : "";
  }
};

// B13 (i)
TEST_F(Door, AnotherProtocolIsRefusedWithBothVersions) {
  const auto reply = ask<Challenge>(Knock{kControlProtocol + 1, "test", "e1", "n"});
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().code, Errc::unsupported);
  EXPECT_THAT(
      reply.error().context,
      HasSubstr("node \"e1\" speaks control protocol " + std::to_string(kControlProtocol + 1) +
                ", gateway \"gw\" speaks " + std::to_string(kControlProtocol)));
}

TEST_F(Door, AProofIsGoodForOneNonceOneNameAndOneGeneration) {
  const std::string once = nonce();
  const std::string proof = node_proof("", once, "e1", 5);
  EXPECT_TRUE(ask<Welcome>(hello(5, once, proof)));
  EXPECT_FALSE(ask<Welcome>(hello(5, once, proof)));  // heard by somebody and said again
  const std::string second = nonce();
  EXPECT_FALSE(ask<Welcome>(hello(6, second, node_proof("", second, "e1", 5))));
  const std::string third = nonce();
  EXPECT_FALSE(ask<Welcome>(hello(6, third, node_proof("", third, "e2", 6))));
  EXPECT_FALSE(ask<Welcome>(hello(6, "made up", node_proof("", "made up", "e1", 6))));
  const std::string fourth = nonce();
  EXPECT_FALSE(ask<Welcome>(hello(6, fourth, "")));
}

TEST_F(Door, ASilentNodeIsForgottenAndAskedToRegisterAgain) {
  const std::string once = nonce();
  ASSERT_TRUE(ask<Welcome>(hello(5, once, node_proof("", once, "e1", 5))));
  ASSERT_TRUE(eventually([&] { return heard_->has("+e1 5"); }));
  ASSERT_TRUE(eventually([&] { return heard_->has("-e1 5"); }));
  const auto reply = ask<HeartbeatReply>(Heartbeat{"e1", 5, false, {}, 0});
  ASSERT_TRUE(reply);
  EXPECT_FALSE(reply->known);
  const auto stale = ask<HeartbeatReply>(Heartbeat{"e1", 4, false, {}, 0});
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code, Errc::stale_generation);
  // Its end is no reason to let an earlier life in.
  const std::string late = nonce();
  const auto former = ask<Welcome>(hello(4, late, node_proof("", late, "e1", 4)));
  ASSERT_FALSE(former);
  EXPECT_EQ(former.error().code, Errc::stale_generation);
}

TEST_F(Door, AStrangerCannotSayGoodbyeForALaterLife) {
  const std::string once = nonce();
  ASSERT_TRUE(ask<Welcome>(hello(5, once, node_proof("", once, "e1", 5))));
  caf::anon_send(door_, Goodbye{"e1", 4});
  caf::anon_send(door_, Goodbye{"nobody", 4});
  const auto reply = ask<HeartbeatReply>(Heartbeat{"e1", 5, false, {}, 0});
  ASSERT_TRUE(reply);
  EXPECT_TRUE(reply->known);
}

TEST_F(Door, OnlySoManyMayRegisterAtOnce) {
  Error last;
  for (int i = 0; i < 2000; ++i) {
    const auto challenge = ask<Challenge>(Knock{kControlProtocol, "test", "e1", "n"});
    if (!challenge) last = challenge.error();
  }
  EXPECT_EQ(last.code, Errc::overloaded);
}

// --- TLS -------------------------------------------------------------------------------------------------

class Tls : public testing::Test {
 protected:
  test::TempDirectory directory_;
  test::Authority authority_{directory_.path(), "authority"};
  test::Authority stranger_{directory_.path(), "stranger"};

  NetworkOptions network(const test::Authority& mine, const test::Authority& trusted,
                         const std::string& name) {
    NetworkOptions network = quick_network();
    network.lost_after = 2000ms;
    network.tls = true;
    const auto files = mine.issue(name);
    network.certificate = files.certificate;
    network.key = files.key;
    network.authority = trusted.path();
    return network;
  }
};

TEST_F(Tls, NodesWithACertificateOfTheAuthorityRegister) {
  Gateway gateway(0, {}, network(authority_, authority_, "gw"));
  NodeSetup setup;
  setup.network = network(authority_, authority_, "e1");
  Node node(gateway.port, setup);
  EXPECT_TRUE(eventually([&] { return gateway.heard->joined() == "e1 "; }))
      << node.error().message();
}

TEST_F(Tls, NobodyElseDoes) {
  Gateway gateway(0, {}, network(authority_, authority_, "gw"));
  NodeSetup foreign;
  foreign.network = network(stranger_, authority_, "e2");
  foreign.name = "e2";
  Node with_another_certificate(gateway.port, foreign);
  NodeSetup suspicious;
  suspicious.network = network(authority_, stranger_, "e3");
  suspicious.name = "e3";
  Node that_trusts_another_authority(gateway.port, suspicious);
  NodeSetup open;
  open.name = "e4";
  Node without_tls(gateway.port, open);
  for (Node* refused : {&with_another_certificate, &that_trusts_another_authority, &without_tls}) {
    EXPECT_TRUE(eventually([&] { return refused->error().code == Errc::unavailable; }));
  }
  NodeSetup good;
  good.network = network(authority_, authority_, "e1");
  Node node(gateway.port, good);
  ASSERT_TRUE(eventually([&] { return gateway.heard->joined() == "e1 "; }));
  std::this_thread::sleep_for(500ms);  // several attempts of each of the others
  // None of them got in, and none of them broke the connection of the one that is.
  EXPECT_THAT(gateway.heard->so_far(), testing::ElementsAre("+e1 100"));
  EXPECT_FALSE(with_another_certificate.is(MembershipState::registered));
  EXPECT_FALSE(that_trusts_another_authority.is(MembershipState::registered));
  EXPECT_FALSE(without_tls.is(MembershipState::registered));
}

}  // namespace
}  // namespace cedar::actors
