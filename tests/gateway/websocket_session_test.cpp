// session.update: what a client chooses for its connection.

#include "tests/gateway/stream_fixture.h"

namespace cedar::gateway {
namespace {

using test::WebSocket;
using namespace std::chrono_literals;

class SessionTest : public StreamTest {
 protected:
  static Json update(WebSocket& socket, const std::string& fields) {
    socket.send(R"({"type":"session.update","event_id":"u1")" +
                (fields.empty() ? "" : "," + fields) + "}");
    return read_event(socket);
  }
  static size_t deltas(const std::vector<Json>& events) {
    size_t count = 0;
    for (const Json& event : events) count += event["type"] == "response.content.delta" ? 1 : 0;
    return count;
  }
};

TEST_F(SessionTest, AnUpdateIsAnsweredWithWhatHolds) {
  start();
  WebSocket socket(port());
  open(socket);
  const Json unchanged = update(socket, {});
  EXPECT_EQ(unchanged["type"], "session.updated");
  EXPECT_EQ(unchanged["client_event_id"], "u1");
  EXPECT_EQ(unchanged["ping_interval_s"], 20.0);
  EXPECT_EQ(unchanged["coalesce_ms"], 0);
  EXPECT_EQ(update(socket, R"("coalesce_ms":200)")["coalesce_ms"], 200);
  const Json both = update(socket, R"("ping_interval_s":1.5)");
  EXPECT_EQ(both["ping_interval_s"], 1.5);
  EXPECT_EQ(both["coalesce_ms"], 200);
  EXPECT_EQ(update(socket, R"("coalesce_ms":-1)")["error"]["param"], "coalesce_ms");
  EXPECT_EQ(update(socket, {})["coalesce_ms"], 200);
}

// A hundred tokens, one in five milliseconds at the most: by themselves about a hundred deltas, and with 100 ms between
// two, as many as there are tenths of seconds. A machine that is slow makes both fewer, so they are compared by time.
TEST_F(SessionTest, DeltasGatherForAsLongAsTheClientWants) {
  script_->decoder_step_us = 5000;
  answer_endlessly();
  start();
  WebSocket socket(port());
  open(socket);
  update(socket, R"("coalesce_ms":100)");
  const auto begin = std::chrono::steady_clock::now();
  socket.send(create("resp_0001", R"("max_tokens":100)"));
  const auto events = read_until(socket, "response.done");
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(events.back()["usage"]["completion_tokens"], 100);
  EXPECT_GE(deltas(events), 2U);
  EXPECT_LE(deltas(events), static_cast<size_t>(took / 100ms) + 2);
  const std::string_view word = card_.tokenizer->token_bytes(card_.tokenizer->encode("word ")[0]);
  EXPECT_EQ(joined(events, "response.content.delta").size(), 100 * word.size());
}

// What waits is sent though no further token comes.
TEST_F(SessionTest, TheLastDeltasDoNotWaitForMore) {
  start();
  WebSocket socket(port());
  open(socket);
  update(socket, R"("coalesce_ms":200)");
  socket.send(create("resp_0001"));
  const auto events = read_until(socket, "response.done");
  EXPECT_EQ(joined(events, "response.content.delta"), "Hello there, friend.");
  EXPECT_EQ(events.back()["status"], "completed");
}

TEST_F(SessionTest, ThePingIntervalIsTheClients) {
  start();
  WebSocket socket(port());
  open(socket);
  socket.answer_pings = false;
  update(socket, R"("ping_interval_s":1)");
  EXPECT_EQ(read_event(socket)["type"], "closed");
  EXPECT_EQ(socket.close_code(), 4004);
}

}  // namespace
}  // namespace cedar::gateway
