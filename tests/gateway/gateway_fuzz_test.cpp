// Ten thousand broken requests to a whole server on the demo model: raw bytes, damaged JSON for every endpoint,
// WebSocket frames and messages. Whatever arrives is answered with 2xx, or 4xx and an error object, or by closing
// the connection. Afterwards the server knows what it knew, and has not grown.

#include <malloc.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "tests/gateway/demo_fixture.h"
#include "tests/gateway/mutator.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CEDAR_TEST_SANITIZED \
  1  // freed memory is kept back, so growth says nothing; leaks are looked for at the end
#else
#define CEDAR_TEST_SANITIZED 0
#endif

namespace cedar::gateway {
namespace {

using namespace std::chrono_literals;

constexpr int kClients = 4;
constexpr int kRequests = 10000;
// Of the second half of the requests, over what the first half has left: room for the allocator's holes, less than
// 1 KB kept by each of these requests would take.
constexpr int64_t kMaxGrowthBytes = int64_t{4} << 20;
constexpr auto kPatience = 10ms;  // for an answer to bytes that may be no whole request

struct Seed {
  const char* path;
  const char* body;
};

constexpr Seed kSeeds[] = {
    {"/v1/chat/completions",
     R"({"model":"demo","messages":[{"role":"user","content":"Hi"}],"max_tokens":2,"temperature":0.5,"seed":1})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":2,"stream":true,)"
     R"("stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":2,"n":2})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"x"}],"max_tokens":2,"response_format":{"type":"json_schema",)"
     R"("json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"type":"integer"},)"
     R"("b":{"enum":["p","q"]}},"required":["a"],"additionalProperties":false}}}})"},
    {"/v1/chat/completions",
     R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,"tool_calls":)"
     R"([{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool",)"
     R"("tool_call_id":"c","content":"r"}],"tools":[{"type":"function","function":{"name":"f",)"
     R"("parameters":{"type":"object"}}}],"tool_choice":"auto","max_tokens":2})"},
    {"/v1/completions", R"({"prompt":[0,5,9],"max_tokens":2,"echo":true,"logit_bias":{"5":1.5}})"},
    {"/v1/completions", R"({"prompt":["once","upon"],"max_tokens":1,"stop":["a"],"stream":true})"},
    {"/tokenize", R"({"prompt":"some text","add_special_tokens":true})"},
    {"/tokenize", R"({"messages":[{"role":"user","content":"Hi"}]})"},
    {"/detokenize", R"({"tokens":[5,6,7]})"},
};

constexpr const char* kGets[] = {"/v1/models",      "/health",    "/ready",
                                 "/version",        "/metrics",   "/",
                                 "/v1/models/demo", "/v1/stream", "/nothing"};

constexpr const char* kMessages[] = {
    R"({"type":"response.create","event_id":"e","request":{"messages":[{"role":"user","content":"Hi"}],"max_tokens":2}})",
    R"({"type":"response.create","response_id":"resp_0001","resumable":false,"request":{"messages":)"
    R"([{"role":"user","content":"Hi"}],"max_tokens":2,"return_token_ids":true}})",
    R"({"type":"response.cancel","response_id":"resp_0001"})",
    R"({"type":"response.resume","response_id":"resp_0001","last_seq":1})",
    R"({"type":"response.ack","response_id":"resp_0001","seq":2})",
    R"({"type":"ping","nonce":"n"})",
};

int64_t own_memory_bytes() {
  malloc_trim(0);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

/// What the statuses and bodies of all answers were.
struct Tally {
  std::atomic<int> good{0}, refused{0}, closed{0}, messages{0};
};

/// One client: its requests depend on its seed alone.
class FuzzClient {
 public:
  FuzzClient(uint16_t port, uint64_t seed, Tally& tally)
      : port_(port), mutator_(seed), tally_(tally) {}

  void run(int requests) {
    for (int i = 0; i < requests && !testing::Test::HasFailure(); ++i) {
      switch (i % 5) {
        case 0:
        case 1: send_json(); break;
        case 2: send_raw(); break;
        case 3: send_message(); break;
        default: i % 2 == 0 ? send_frame() : send_raw(); break;
      }
    }
    kept_.reset();
    socket_.reset();
  }

 private:
  const Seed& any_seed() { return kSeeds[mutator_.below(std::size(kSeeds))]; }

  static bool is_error_object(const std::string& body) {
    const Json json = Json::parse(body, nullptr, false);
    return json.is_object() && json.contains("error") && json["error"].is_object() &&
           json["error"].contains("message") && json["error"]["message"].is_string();
  }

  void check(const test::Reply& reply, const std::string& request) {
    if (reply.status >= 200 && reply.status < 300) {
      ++tally_.good;
      // Errors behind the head of a stream: of the client's side, too.
      EXPECT_EQ(reply.body.find("internal_error"), std::string::npos) << request << "\n"
                                                                      << reply.body;
    } else {
      ++tally_.refused;
      EXPECT_TRUE(reply.status >= 400 && reply.status < 500) << reply.status << ": " << request;
      EXPECT_TRUE(is_error_object(reply.body)) << request << "\n" << reply.body;
    }
  }

  /// Still JSON, with one or two values that are something else.
  std::string with_other_values(const char* text) {
    static const Json kValues = Json::parse(
        R"([null, true, false, 0, 1, 2, -1, 0.5, 1e308, 9223372036854775807, 18446744073709551615, "", "a", "\u0000",
            "demo", "user", "\ud83d\ude00", [], {}, [[]], [null], [1, 2], ["a"], {"a": {}}, {"type": "object"},
            {"type": "array", "items": {"$ref": "#"}}])");
    Json json = Json::parse(text);
    for (size_t i = 0; i <= mutator_.below(2); ++i) {
      Json* at = &json;
      // Down a random path, which ends somewhere.
      while (at->is_structured() && !at->empty() && (at == &json || mutator_.below(4) != 0)) {
        auto child = at->begin();
        std::advance(child, mutator_.below(at->size()));
        at = &*child;
      }
      const Json old = *at;
      do {
        *at = kValues[mutator_.below(kValues.size())];
      } while (mutator_.below(4) != 0 && at->type() != old.type());
    }
    return json.dump();
  }

  /// A damaged body in a sound HTTP request, on a connection that is kept.
  void send_json() {
    const Seed& seed = any_seed();
    const std::string request =
        test::post_text(seed.path, mutator_.below(3) == 0 ? mutator_.mutate(seed.body)
                                                          : with_other_values(seed.body));
    if (!kept_) kept_ = std::make_unique<test::Socket>(port_);
    ASSERT_TRUE(kept_->send(request));
    const auto reply = test::read_reply(*kept_);
    ASSERT_TRUE(reply) << request;
    check(*reply, request);
    const auto connection = reply->headers.find("connection");
    if (connection != reply->headers.end() && connection->second == "close") kept_.reset();
  }

  /// Bytes that were a request once, or never.
  void send_raw() {
    std::string bytes;
    switch (mutator_.below(4)) {
      case 0: bytes = test::get_text(kGets[mutator_.below(std::size(kGets))]); break;
      case 1: bytes = test::WebSocket::upgrade_text(); break;
      default: bytes = test::post_text(any_seed().path, any_seed().body); break;
    }
    bytes = mutator_.below(10) == 0 ? random_bytes() : mutator_.mutate(bytes);
    test::Socket socket(port_);
    if (!socket.send(bytes)) {
      ++tally_.closed;
      return;
    }
    // What is not whole ends here; of what is whole the answer may have to be computed first.
    if (!socket.read_more(kPatience) && socket.timed_out()) socket.end_sending();
    const auto reply = test::read_head(socket);
    if (!reply) {
      ++tally_.closed;
      EXPECT_FALSE(socket.timed_out()) << "neither answered nor closed: " << bytes;
      return;
    }
    if (reply->status == 101) return;  // an upgrade that survived
    check_rest(socket, *reply, bytes);
  }

  void check_rest(test::Socket& socket, test::Reply reply, const std::string& bytes) {
    EXPECT_TRUE(reply.status >= 200 && reply.status < 500) << reply.status << ": " << bytes;
    if (reply.status < 300) {
      ++tally_.good;
      return;
    }
    ++tally_.refused;
    if (bytes.rfind("HEAD", 0) == 0) return;  // no body
    const auto length = reply.headers.find("content-length");
    ASSERT_NE(length, reply.headers.end()) << bytes;
    const auto body = socket.take(std::stoul(length->second));
    ASSERT_TRUE(body) << bytes;
    EXPECT_TRUE(is_error_object(*body)) << bytes << "\n" << *body;
  }

  std::string random_bytes() {
    std::string bytes(1 + mutator_.below(300), '\0');
    for (char& byte : bytes) byte = static_cast<char>(mutator_.below(256));
    return bytes;
  }

  /// A damaged message in a sound frame.
  void send_message() {
    if (!socket_) {
      socket_ = std::make_unique<test::WebSocket>(port_);
      ASSERT_EQ(socket_->head().status, 101);
    }
    const std::string message = mutator_.mutate(kMessages[mutator_.below(std::size(kMessages))]);
    ++tally_.messages;
    const std::string nonce = std::to_string(++pings_);
    // The server may have said goodbye after the message before.
    if (!socket_->send(message) || !socket_->send(R"({"type":"ping","nonce":")" + nonce + "\"}")) {
      socket_.reset();
      return;
    }
    while (const auto text = socket_->read()) {
      const Json event = Json::parse(*text, nullptr, false);
      ASSERT_TRUE(event.is_object()) << *text;
      if (event["type"] == "pong" && event.contains("nonce") && event["nonce"] == nonce) return;
      EXPECT_EQ(text->find("internal_error"), std::string::npos) << message << "\n" << *text;
      if (event["type"] == "error") {
        EXPECT_TRUE(is_error_object(*text)) << message << "\n" << *text;
      }
    }
    EXPECT_FALSE(socket_->socket().timed_out()) << "neither answered nor closed: " << message;
    EXPECT_NE(socket_->close_code(), 1011) << message;
    socket_.reset();
  }

  /// Frames whose bytes were damaged, on a connection of their own.
  void send_frame() {
    test::WebSocket socket(port_);
    ASSERT_EQ(socket.head().status, 101);
    const std::string sound = test::WebSocket::frame_text(
        static_cast<int>(mutator_.below(16)), kMessages[mutator_.below(std::size(kMessages))]);
    socket.socket().send(mutator_.below(4) == 0 ? random_bytes() : mutator_.mutate(sound));
    ++tally_.messages;
    const auto first = socket.read();  // session.created
    EXPECT_TRUE(first);
    socket.socket().read_more(1ms);
  }

  uint16_t port_;
  Mutator mutator_;
  Tally& tally_;
  int pings_ = 0;
  std::unique_ptr<test::Socket> kept_;
  std::unique_ptr<test::WebSocket> socket_;
};

class GatewayFuzz : public DemoTest {
 protected:
  void configure(actors::SystemOptions& system, GatewayOptions& gateway, ModelCard& card) override {
    system.cache.bytes = 1 << 20;
    system.max_queued = 100000;  // a full queue is an answer of its own, tested elsewhere
    gateway.stream.replay_ttl = 50ms;
    gateway.stream.detach_grace = 50ms;
    card.default_max_tokens = 2;
  }
  void send_all(uint64_t seed, int requests) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kClients; ++i) {
      threads.emplace_back([this, seed, i, requests] {
        FuzzClient(port(), seed + static_cast<uint64_t>(i), tally_).run(requests / kClients);
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(test::eventually([this] { return idle() && gateway_->connections() == 0; }));
  }
  /// The record that the document holds, word by word.
  void expect_golden_answer() {
    std::ifstream in(std::string(CEDAR_SOURCE_DIR) + "/tests/golden/demo/prompts.json");
    for (const Json& record : Json::parse(in)) {
      if (record["name"].get<std::string>().rfind("lookup_", 0) != 0) continue;
      const Json request{{"prompt", record["ids"]}, {"temperature", 0}, {"max_tokens", 32}};
      const auto reply = test::post(port(), "/v1/completions", request.dump());
      ASSERT_TRUE(reply);
      ASSERT_EQ(Json::parse(reply->body)["choices"][0]["text"], record["want"]);
      return;
    }
    FAIL() << "no golden lookup";
  }
  Tally tally_;
};

TEST_F(GatewayFuzz, TenThousandBrokenRequestsAreAnsweredOrClosed) {
  expect_golden_answer();
  send_all(1, kRequests / 2);
  const int64_t half = own_memory_bytes();
  send_all(1001, kRequests / 2);
  const int64_t growth = own_memory_bytes() - half;
  RecordProperty("growth_bytes", std::to_string(growth));
  if (CEDAR_TEST_SANITIZED == 0) {
    EXPECT_LT(growth, kMaxGrowthBytes);
  }
  std::printf("answered %d, refused %d, closed %d, messages and frames %d, growth %lld bytes\n",
              tally_.good.load(), tally_.refused.load(), tally_.closed.load(),
              tally_.messages.load(), static_cast<long long>(growth));
  // The damage is neither so small that all pass nor so large that none does.
  EXPECT_GT(tally_.good, 500);
  EXPECT_GT(tally_.refused, 3000);
  expect_golden_answer();
}

}  // namespace
}  // namespace cedar::gateway
