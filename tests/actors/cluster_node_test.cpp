// Whole nodes of a cluster in one process, over UCX on loopback: those that have services and no stages.

#include "actors/cluster_node.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "actors/service_directory.h"
#include "core/crc32c.h"
#include "tests/support/eventually.h"
#include "transport/calls.h"

namespace cedar::actors {
namespace {

using test::eventually;
using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

constexpr transport::CallMethod kEcho = 60000;

uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

class Echo final : public NodeService {
 public:
  Echo(const DataPlane& plane, Service service) : plane_(plane), service_(std::move(service)) {
    plane_.calls->serve(kEcho, [](const transport::CallContext&, Bytes request,
                                  transport::CallReply reply) { reply(std::move(request)); });
  }
  ~Echo() override { plane_.calls->serve(kEcho, {}); }
  Service description() const override { return service_; }

 private:
  DataPlane plane_;
  Service service_;
};

/// A node, and the data plane that its service was given.
struct TestNode {
  DataPlane plane;
  std::unique_ptr<ClusterNode> node;

  ~TestNode() {
    if (node) node->close();
  }
  size_t knows(ServiceRole role) const { return plane.directory->services(role).size(); }
  Result<Bytes> ask(ServiceRole role) const {
    const auto providers = plane.directory->services(role);
    if (providers.empty()) return make_error(Errc::unavailable, "nobody");
    auto promise = std::make_shared<std::promise<Result<Bytes>>>();
    plane.calls->call(providers[0].target(), kEcho, Bytes(100000, std::byte{7}),
                      transport::Clock::now() + 20s,
                      [promise](Result<Bytes> reply) { promise->set_value(std::move(reply)); });
    return promise->get_future().get();
  }
};

class ClusterNodeTest : public testing::Test {
 protected:
  uint16_t port_ = free_port();

  std::unique_ptr<TestNode> start(const std::string& name, Service service, bool gateway = false) {
    ClusterNodeOptions options;
    options.cluster = "test";
    options.name = name;
    options.id = NodeId(crc32c(std::as_bytes(std::span(name))));
    options.generation = 1;
    options.heartbeat_interval = 50ms;
    options.lost_after = 1000ms;
    options.dial_interval = 50ms;
    if (gateway) {
      options.door = NodeAddress{"127.0.0.1", port_};
    } else {
      options.gateways.push_back({"gw", {"127.0.0.1", port_}});
    }
    auto result = std::make_unique<TestNode>();
    options.services.push_back([&](const DataPlane& plane) -> Result<std::unique_ptr<NodeService>> {
      result->plane = plane;
      return std::unique_ptr<NodeService>(std::make_unique<Echo>(plane, service));
    });
    auto node = ClusterNode::start(nullptr, options);
    EXPECT_TRUE(node.has_value()) << node.error().message();
    if (node) result->node = std::move(*node);
    return result;
  }
};

TEST_F(ClusterNodeTest, NodesWithoutStagesFindAndCallEachOther) {
  const auto first = start("a", {ServiceRole::engram, 0, 1, ""});
  const auto second = start("b", {ServiceRole::indexer, 0, 1, ""});
  EXPECT_GT(first->node->data_port(), 0);
  const auto gateway = start("gw", {ServiceRole::cache, 0, 1, ""}, true);
  for (const TestNode* node : {first.get(), second.get(), gateway.get()}) {
    for (const ServiceRole role : {ServiceRole::engram, ServiceRole::indexer, ServiceRole::cache}) {
      ASSERT_TRUE(eventually([&] { return node->knows(role) == 1; }));
      const auto reply = node->ask(role);
      ASSERT_TRUE(reply.has_value()) << reply.error().message();
      EXPECT_EQ(reply->size(), 100000u);
    }
  }
}

TEST_F(ClusterNodeTest, ANodeThatDrainsAnswersUntilNobodyKnowsOfIt) {
  const auto gateway = start("gw", {ServiceRole::cache, 0, 1, ""}, true);
  const auto service = start("a", {ServiceRole::engram, 0, 1, ""});
  const auto user = start("b", {ServiceRole::indexer, 0, 1, ""});
  ASSERT_TRUE(eventually([&] { return user->knows(ServiceRole::engram) == 1; }));
  std::thread drain([&] { service->node->drain(10s); });
  int answered = 0;
  while (user->knows(ServiceRole::engram) == 1) {
    const auto reply = user->ask(ServiceRole::engram);
    if (!reply && reply.error().context == "nobody") break;
    EXPECT_TRUE(reply.has_value()) << reply.error().message();
    ++answered;
  }
  EXPECT_GT(answered, 0);
  drain.join();
}

}  // namespace
}  // namespace cedar::actors
