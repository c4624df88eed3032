// One write after another on a WebSocket.

#include "tests/gateway/stream_fixture.h"

namespace cedar::gateway {
namespace {

using test::WebSocket;

class WritingTest : public StreamTest {
 protected:
  WritingTest() {
    options_.stream.max_unsent_bytes = 64 << 20;
    answer_endlessly();
  }
  /// Reads to the end of the only answer; every event once and in order.
  static void read_whole(WebSocket& socket) {
    int64_t events = 0;
    while (true) {
      const Json event = read_event(socket);
      ASSERT_NE(event["type"], "closed");
      ASSERT_EQ(event["seq"], ++events) << "an event twice, or one missing";
      if (event["type"] == "response.done") break;
    }
  }
};

// Whatever is unsent makes deltas wait here, so that each write's end brings the frames of the next one. They must not
// begin a write of their own: two at once wrote one frame twice, and one that had been freed.
TEST_F(WritingTest, WhatWaitedForTheSocketIsWrittenOnce) {
  options_.stream.merge_unsent_bytes = 0;
  script_->decoder_step_us = 100;
  start();
  WebSocket socket(port());
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":2000)"));
  read_whole(socket);
}

}  // namespace
}  // namespace cedar::gateway
