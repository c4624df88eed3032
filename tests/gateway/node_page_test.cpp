#include "gateway/node_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/eventually.h"
#include "tests/support/socket_client.h"

namespace cedar::gateway {
namespace {

using testing::HasSubstr;

class NodePageTest : public testing::Test {
 protected:
  std::atomic<bool> ready_{true};
  NodePageOptions options_{"127.0.0.1", 0, 4, 300};
  std::unique_ptr<NodePage> page_;

  void SetUp() override {
    auto page = NodePage::start(
        options_, {[this] { return ready_.load(); }, [] { return "# TYPE a gauge\na 1\n"; }});
    ASSERT_TRUE(page.has_value()) << page.error().message();
    page_ = std::move(*page);
  }
};

TEST_F(NodePageTest, AnswersProbesAndScrapes) {
  EXPECT_EQ(test::get(page_->port(), "/livez")->status, 200);
  EXPECT_EQ(test::get(page_->port(), "/ready")->status, 200);
  ready_ = false;
  EXPECT_EQ(test::get(page_->port(), "/ready")->status, 503);
  EXPECT_EQ(test::get(page_->port(), "/livez")->status, 200);
  const auto metrics = test::get(page_->port(), "/metrics?x=1");
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->body, "# TYPE a gauge\na 1\n");
  EXPECT_EQ(test::get(page_->port(), "/v1/models")->status, 404);
}

TEST_F(NodePageTest, RefusesWhatItDoesNotTake) {
  const auto post = test::post(page_->port(), "/metrics", "{}");
  EXPECT_EQ(post->status, 405);
  EXPECT_EQ(post->headers.at("allow"), "GET, HEAD");
  for (const std::string& bytes :
       {std::string("no http at all\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nA: ") + std::string(20000, 'a')}) {
    test::Socket socket(page_->port());
    socket.send(bytes);
    EXPECT_TRUE(socket.closed_by_peer(std::chrono::seconds(30)));
  }
  EXPECT_EQ(test::get(page_->port(), "/livez")->status, 200);
}

// Probes come through: a node would be restarted without them.
TEST_F(NodePageTest, SilentClientsKeepNobodyAway) {
  page_.reset();
  options_.timeout_ms = 600'000;
  SetUp();
  std::vector<std::unique_ptr<test::Socket>> silent;
  for (int64_t i = 0; i < 3 * options_.max_connections; ++i) {
    silent.push_back(std::make_unique<test::Socket>(page_->port()));
    silent.back()->send("GET /livez HT");
  }
  const auto reply = test::get(page_->port(), "/livez");
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->status, 200);
  EXPECT_TRUE(silent.front()->closed_by_peer(std::chrono::seconds(30)));
}

TEST_F(NodePageTest, WhoSaysNothingIsCut) {
  std::vector<std::unique_ptr<test::Socket>> silent;
  for (int64_t i = 0; i < options_.max_connections; ++i) {
    silent.push_back(std::make_unique<test::Socket>(page_->port()));
    silent.back()->send("GET /livez HT");
  }
  for (const auto& socket : silent) EXPECT_TRUE(socket->closed_by_peer(std::chrono::seconds(30)));
  ASSERT_TRUE(test::eventually([this] {
    const auto reply = test::get(page_->port(), "/livez");
    return reply && reply->status == 200;
  }));
}

TEST_F(NodePageTest, EndsWhileSomebodyWaits) {
  test::Socket socket(page_->port());
  socket.send("GET /livez HT");
  page_.reset();
  EXPECT_TRUE(socket.closed_by_peer(std::chrono::seconds(30)));
}

TEST(NodePage, AnAddressThatCannotBeHadIsNamed) {
  const auto bad = NodePage::start({"no-address", 0}, {});
  ASSERT_FALSE(bad.has_value());
  EXPECT_THAT(bad.error().context, HasSubstr("no-address"));
  auto first = NodePage::start({"localhost", 0}, {});
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(NodePage::start({"127.0.0.1", (*first)->port()}, {}).error().code, Errc::io_error);
}

}  // namespace
}  // namespace cedar::gateway
