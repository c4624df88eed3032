#pragma once

#include <string>
#include <vector>

#include "tests/gateway/server_fixture.h"

namespace cedar::gateway {

/// The same with a client of the WebSocket protocol.
class StreamTest : public ServerTest {
 protected:
  static std::string create(const std::string& id, const std::string& request_fields = {},
                            const std::string& fields = {}) {
    return R"({"type":"response.create","event_id":"c1","response_id":")" + id + R"(","request":)" +
           user(request_fields) + (fields.empty() ? "" : "," + fields) + "}";
  }
  static Json read_event(test::WebSocket& socket) {
    const auto text = socket.read();
    return text ? Json::parse(*text) : Json{{"type", "closed"}};
  }
  /// Events up to and including one of `type` (of `id`, when given).
  static std::vector<Json> read_until(test::WebSocket& socket, const std::string& type,
                                      const std::string& id = {}) {
    std::vector<Json> events;
    while (true) {
      events.push_back(read_event(socket));
      const Json& event = events.back();
      if (event["type"] == "closed") return events;
      if (event["type"] == type && (id.empty() || event["response_id"] == id)) return events;
    }
  }
  static std::string joined(const std::vector<Json>& events, const std::string& type) {
    std::string text;
    for (const Json& event : events) {
      if (event["type"] == type) text += event["delta"].get<std::string>();
    }
    return text;
  }
  void open(test::WebSocket& socket) {
    ASSERT_EQ(socket.head().status, 101);
    ASSERT_EQ(read_event(socket)["type"], "session.created");
  }
};

}  // namespace cedar::gateway
