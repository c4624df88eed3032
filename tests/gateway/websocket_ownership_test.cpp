// Whose a response is: clients that vanish, come back, or ask for what another one has.

#include "tests/gateway/stream_fixture.h"

namespace cedar::gateway {
namespace {

using test::eventually;
using test::WebSocket;
using testing::HasSubstr;
using namespace std::chrono_literals;

class OwnershipTest : public StreamTest {
 protected:
  void start_slow() {
    script_->decoder_step_us = 1000;
    answer_endlessly();
    start();
  }
  static std::string resume(const std::string& id, int64_t last_seq) {
    return R"({"type":"response.resume","event_id":"c2","response_id":")" + id +
           R"(","last_seq":)" + std::to_string(last_seq) + "}";
  }
  bool metrics_say(const std::string& line) {
    return test::get(port(), "/metrics")->body.find(line) != std::string::npos;
  }
};

TEST_F(OwnershipTest, AKeptResponseKeepsNoConnection) {
  start();
  {
    WebSocket socket(port()), other(port());
    open(socket);
    open(other);
    socket.send(create("resp_0001"));
    read_until(socket, "response.done");
    other.send(resume("resp_0001", 0));
    read_until(other, "response.done");
    socket.send_close();
    other.socket().reset();
  }
  // The one that asks.
  EXPECT_TRUE(eventually([&] { return metrics_say("cedar_gateway_connections 1\n"); }));
  WebSocket again(port());
  open(again);
  again.send(resume("resp_0001", 1));
  EXPECT_EQ(read_event(again)["seq"], 2);
}

TEST_F(OwnershipTest, TheOldestAnswerWithoutAClientEndsForOneMore) {
  options_.stream.max_detached = 2;
  start_slow();
  for (const char* id : {"resp_0001", "resp_0002", "resp_0003"}) {
    WebSocket socket(port());
    open(socket);
    socket.send(create(id, R"("max_tokens":8000)"));
    read_until(socket, "response.content.delta");
    socket.socket().reset();
    ASSERT_TRUE(eventually([&] { return gateway_->connections() == 0; }));
  }
  EXPECT_TRUE(eventually([&] { return system_->client().stats().running == 2; }, 5s));
  WebSocket socket(port());
  open(socket);
  socket.send(resume("resp_0001", 0));
  const Json done = read_until(socket, "response.done").back();
  EXPECT_EQ(done["status"], "failed");
  EXPECT_EQ(done["error"]["type"], "client_gone");
  socket.send(resume("resp_0003", 0));
  EXPECT_EQ(read_event(socket)["type"], "response.created");
}

TEST_F(OwnershipTest, VanishedClientsDoNotKeepOthersWaiting) {
  script_->sequences = 2;
  options_.stream.max_detached = 100;
  start_slow();
  {
    std::vector<std::unique_ptr<WebSocket>> vanishing;
    for (int i = 0; i < 20; ++i) {
      vanishing.push_back(std::make_unique<WebSocket>(port()));
      open(*vanishing.back());
      vanishing.back()->send(create("resp_00" + std::to_string(10 + i), R"("max_tokens":8000)"));
    }
    ASSERT_TRUE(eventually([&] { return system_->client().stats().queued == 18; }));
    for (auto& socket : vanishing) socket->socket().reset();
  }
  ASSERT_TRUE(eventually([&] { return gateway_->connections() == 0; }));
  EXPECT_EQ(chat(user(R"("max_tokens":3)"))->status,
            200);  // 8000 steps take longer than a reply may
}

TEST_F(OwnershipTest, ACreateTakesNoLiveStreamFromAnotherConnection) {
  start_slow();
  WebSocket first(port()), second(port());
  open(first);
  open(second);
  first.send(create("resp_0001", R"("max_tokens":8000)"));
  read_until(first, "response.content.delta");
  second.send(create("resp_0001", R"("max_tokens":8000)"));
  const Json refused = read_event(second);
  EXPECT_EQ(refused["error"]["code"], "response_in_use");
  EXPECT_EQ(refused["response_id"], "resp_0001");
  EXPECT_EQ(refused["client_event_id"], "c1");
  EXPECT_EQ(read_until(first, "response.content.delta").back()["response_id"], "resp_0001");
  // A retry on its own connection brings nothing twice.
  int64_t seq = read_event(first)["seq"].get<int64_t>();
  first.send(create("resp_0001", R"("max_tokens":8000)"));
  first.send(R"({"type":"ping","nonce":"n-1"})");
  for (const Json& event : read_until(first, "pong")) {
    if (event["type"] == "pong") continue;
    EXPECT_EQ(event["seq"], ++seq);
  }
  // One that has lost its connection gets it back.
  first.socket().reset();
  ASSERT_TRUE(eventually([&] { return gateway_->connections() == 1; }));
  second.send(create("resp_0001", R"("max_tokens":8000)"));
  EXPECT_EQ(read_event(second)["seq"], 1);
  second.send(R"({"type":"response.cancel","response_id":"resp_0001"})");
  EXPECT_EQ(read_until(second, "response.done").back()["status"], "cancelled");
}

TEST_F(OwnershipTest, AnIdNamesOneRequest) {
  start_slow();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":2)"));
  socket.send(create("resp_0001", R"("max_tokens":3)"));
  const auto events = read_until(socket, "error");
  EXPECT_EQ(events.back()["error"]["code"], "response_id_conflict");
  EXPECT_EQ(events.back()["response_id"], "resp_0001");
  if (events.size() == 1 || events[events.size() - 2]["type"] != "response.done") {
    read_until(socket, "response.done");
  }
  socket.send(create("resp_0001", R"("max_tokens":3)"));
  EXPECT_EQ(read_event(socket)["error"]["code"], "response_id_conflict");
  socket.send(create("resp_0001", R"("max_tokens":2)"));
  EXPECT_EQ(read_event(socket)["type"], "response.created");
}

TEST_F(OwnershipTest, RefusedCreatesAndResumesAreAnsweredByName) {
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("temperature":9)"));
  EXPECT_EQ(read_event(socket)["response_id"], "resp_0001");
  socket.send(create("resp_0001", {}, R"("credits":0)"));
  EXPECT_EQ(read_event(socket)["response_id"], "resp_0001");
  socket.send(create("resp_0001"));
  const auto last = read_until(socket, "response.done").back()["seq"].get<int64_t>();
  socket.send(resume("resp_0001", last + 1));
  const Json beyond = read_event(socket);
  EXPECT_EQ(beyond["error"]["param"], "last_seq");
  EXPECT_EQ(beyond["newest_seq"], last);
  EXPECT_EQ(beyond["client_event_id"], "c2");
  // A gap does not cut off a response that runs here.
  answer_endlessly();
  script_->decoder_step_us = 1000;
  socket.send(create("resp_0002", R"("max_tokens":8000)"));
  read_until(socket, "response.content.delta");
  socket.send(R"({"type":"response.ack","response_id":"resp_0002","seq":2})");
  socket.send(resume("resp_0002", 0));
  EXPECT_EQ(read_until(socket, "error").back()["error"]["code"], "resume_gap");
  socket.send(R"({"type":"response.cancel","response_id":"resp_0002"})");
  EXPECT_EQ(read_until(socket, "response.done").back()["status"], "cancelled");
}

}  // namespace
}  // namespace cedar::gateway
