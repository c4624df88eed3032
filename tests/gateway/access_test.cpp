// Who may use the gateway and how much: API keys, their limits, web pages of other origins, bodies nobody can read.

#include "gateway/api_keys.h"
#include "tests/gateway/stream_fixture.h"

namespace cedar::gateway {
namespace {

using test::eventually;
using test::WebSocket;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr const char* kAnna = "anna-key-0123456789";
constexpr const char* kBert = "bert-key-0123456789";

std::string bearer(const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; }

class AccessTest : public StreamTest {
 protected:
  void add_key(const char* name, const char* key, int64_t concurrent = 0, int64_t requests = 0,
               int64_t tokens = 0) {
    options_.keys.push_back({name, digest_of(key), concurrent, requests, tokens});
  }
  test::Reply ask(const std::string& request) {
    test::Socket socket(port());
    socket.send(request);
    return test::read_reply(socket).value_or(test::Reply{});
  }
  test::Reply ask_chat(const std::string& headers, const std::string& body = user()) {
    return ask(test::post_text("/v1/chat/completions", body, headers));
  }
  test::Reply ask_get(const std::string& path, const std::string& headers = {}) {
    return ask("GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  }
};

TEST(ApiKeys, DigestsAreReadAndKeysAreFoundByThem) {
  const auto digest =
      parse_digest("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015AD");
  ASSERT_TRUE(digest);
  EXPECT_EQ(*digest, digest_of("abc"));
  for (const char* bad :
       {"", "ba78", "xa7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}) {
    const auto refused = parse_digest(bad);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().context, "must be 64 hexadecimal digits");
  }
  const KeyRing ring({{"a", digest_of(kAnna)}, {"b", digest_of(kBert)}});
  EXPECT_EQ(ring.find(kAnna)->name(), "a");
  EXPECT_EQ(ring.find(kBert)->name(), "b");
  EXPECT_EQ(ring.find(""), nullptr);
  EXPECT_EQ(ring.find("anna-key-012345678"), nullptr);
  EXPECT_FALSE(KeyRing({}).required());
}

TEST(ApiKeys, RequestsPerMinuteFlowBack) {
  const auto begin = KeyAccount::Clock::now();
  KeyAccount account({"a", {}, 0, 2, 0}, begin);
  EXPECT_FALSE(account.enter(begin));
  EXPECT_FALSE(account.enter(begin));
  const auto refused = account.enter(begin);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->type, "rate_limit_error");
  EXPECT_EQ(refused->message, "at most 2 requests a minute with this API key");
  EXPECT_EQ(refused->retry_after_s, 30);
  EXPECT_EQ(account.enter(begin + 20s)->retry_after_s, 10);
  EXPECT_FALSE(account.enter(begin + 30s));
  EXPECT_TRUE(account.enter(begin + 31s));
  EXPECT_FALSE(account.enter(begin + 300s));  // no more than a minute's worth is saved up
  EXPECT_FALSE(account.enter(begin + 300s));
  EXPECT_TRUE(account.enter(begin + 300s));
}

TEST(ApiKeys, TokensMayBeOverdrawnAndAreOwed) {
  const auto begin = KeyAccount::Clock::now();
  KeyAccount account({"a", {}, 0, 0, 600}, begin);
  EXPECT_FALSE(account.enter(begin));
  account.charge(1200);
  EXPECT_EQ(account.enter(begin)->message, "at most 600 tokens a minute with this API key");
  EXPECT_EQ(account.enter(begin)->retry_after_s, 61);  // 600 owed and one to have
  EXPECT_TRUE(account.enter(begin + 60s));
  EXPECT_FALSE(account.enter(begin + 62s));
}

TEST_F(AccessTest, WithoutKeysEverybodyMay) {
  start();
  EXPECT_EQ(ask_chat("").status, 200);
  EXPECT_EQ(ask_chat(bearer("whatever-it-is")).status, 200);
}

TEST_F(AccessTest, AKnownKeyIsNeeded) {
  add_key("anna", kAnna);
  add_key("bert", kBert);
  start();
  EXPECT_EQ(ask_chat(bearer(kAnna)).status, 200);
  EXPECT_EQ(ask_chat(bearer(kBert)).status, 200);
  EXPECT_EQ(ask_chat("authorization: bearer   " + std::string(kAnna) + " \r\n").status, 200);
  for (const std::string& headers :
       {std::string(), bearer("anna-key-0123456780"), bearer(""), bearer(kAnna) + bearer(kAnna),
        "Authorization: Basic " + std::string(kAnna) + "\r\n",
        std::string("X-Api-Key: ") + kAnna + "\r\n", bearer(std::string(kAnna) + "x")}) {
    const test::Reply reply = ask_chat(headers);
    EXPECT_EQ(reply.status, 401) << headers;
    EXPECT_EQ(reply.headers.at("www-authenticate"), "Bearer");
    EXPECT_EQ(reply.headers.at("connection"), "close");  // its body is not read
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["type"], "authentication_error");
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("API key"));
    EXPECT_EQ(reply.body.find("anna-key"), std::string::npos);
  }
  for (const char* path : {"/v1/models", "/v1/models/demo"}) {
    EXPECT_EQ(ask_get(path).status, 401) << path;
    EXPECT_EQ(ask_get(path, bearer(kAnna)).status, 200) << path;
  }
  for (const char* path : {"/v1/completions", "/tokenize", "/detokenize", "/chat/completions"}) {
    EXPECT_EQ(ask(test::post_text(path, "{}")).status, 401) << path;
    EXPECT_EQ(ask(test::post_text(path, "{}", bearer(kAnna))).status, 400) << path;
  }
  for (const char* path : {"/", "/health", "/livez", "/ready", "/version", "/metrics"}) {
    EXPECT_EQ(ask_get(path).status, 200) << path;
  }
  EXPECT_EQ(ask_get("/nothing").status, 404);
}

TEST_F(AccessTest, MetricsMayAskForAKey) {
  add_key("anna", kAnna);
  options_.http.metrics_need_key = true;
  start();
  EXPECT_EQ(ask_get("/metrics").status, 401);
  EXPECT_EQ(ask_get("/metrics", bearer(kAnna)).status, 200);
}

// A client without a key cannot make the server keep its body.
TEST_F(AccessTest, TheKeyIsAskedForBeforeTheBody) {
  add_key("anna", kAnna);
  start();
  test::Socket socket(port());
  socket.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(test::read_reply(socket)->status, 401);
}

TEST_F(AccessTest, RequestsAtOnceAreBoundedPerKey) {
  add_key("anna", kAnna, 1);
  add_key("bert", kBert, 1);
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  test::Socket running(port());
  running.send(test::post_text("/v1/chat/completions", user(R"("stream":true,"max_tokens":8000)"),
                               bearer(kAnna)));
  ASSERT_TRUE(test::read_head(running));
  const test::Reply refused = ask_chat(bearer(kAnna));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  const Json error = Json::parse(refused.body)["error"];
  EXPECT_EQ(error["type"], "rate_limit_error");
  EXPECT_EQ(error["message"], "at most 1 requests at once with this API key");
  EXPECT_EQ(ask_chat(bearer(kBert), user(R"("max_tokens":3)")).status, 200);
  // The same place for every way to ask.
  WebSocket socket(port(), "cedar.v1", bearer(kAnna));
  open(socket);
  socket.send(create("resp_0001", R"("max_tokens":3)"));
  const Json event = read_event(socket);
  EXPECT_EQ(event["error"]["code"], "rate_limit_error");
  EXPECT_EQ(event["retry_after_s"], 1);
  EXPECT_EQ(event["response_id"], "resp_0001");
  // A client that leaves gives its place back, and so does a request that is refused for its content.
  running.reset();
  EXPECT_TRUE(eventually([&] { return ask_chat(bearer(kAnna), "{}").status == 400; }));
  EXPECT_EQ(ask_chat(bearer(kAnna), user(R"("max_tokens":3)")).status, 200);
  EXPECT_EQ(ask_chat(bearer(kAnna), user(R"("max_tokens":3)")).status, 200);
  socket.send(create("resp_0002", R"("max_tokens":3)"));
  EXPECT_EQ(read_until(socket, "response.done").back()["status"], "incomplete");
  socket.send(create("resp_0003", R"("temperature":9)"));
  EXPECT_EQ(read_event(socket)["error"]["param"], "temperature");
  socket.send(create("resp_0004", R"("max_tokens":3)"));
  EXPECT_EQ(read_until(socket, "response.done").back()["status"], "incomplete");
}

TEST_F(AccessTest, RequestsAndTokensPerMinuteAreBounded) {
  add_key("anna", kAnna, 0, 2);
  add_key("bert", kBert, 0, 0, 10);
  start();
  EXPECT_EQ(ask(test::post_text("/tokenize", R"({"prompt":"x"})", bearer(kAnna))).status, 200);
  EXPECT_EQ(ask_chat(bearer(kAnna)).status, 200);
  const test::Reply refused = ask_chat(bearer(kAnna));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.headers.at("retry-after"), "30");
  EXPECT_EQ(refused.headers.at("connection"), "keep-alive");
  EXPECT_EQ(ask_get("/v1/models", bearer(kAnna)).status, 200);  // no work
  EXPECT_EQ(ask_chat(bearer(kBert)).status, 200);  // more than 10 tokens, prompt and answer
  const test::Reply overdrawn = ask_chat(bearer(kBert));
  EXPECT_EQ(overdrawn.status, 429);
  EXPECT_THAT(overdrawn.body, HasSubstr("at most 10 tokens a minute with this API key"));
}

TEST_F(AccessTest, WebSocketsTakeTheKeyAsHeaderOrAsProtocol) {
  add_key("anna", kAnna);
  start();
  const std::string protocol = std::string("cedar.v1, bearer.") + kAnna;
  EXPECT_EQ(WebSocket(port()).head().status, 401);
  EXPECT_EQ(WebSocket(port(), "cedar.v1, bearer.anna-key-012345678x").head().status, 401);
  EXPECT_EQ(WebSocket(port(), protocol + ", bearer.other").head().status, 401);
  EXPECT_EQ(WebSocket(port(), protocol, bearer("anna-key-012345678x")).head().status, 401);
  EXPECT_EQ(WebSocket(port(), "cedar.v1", bearer(kAnna)).head().status, 101);
  WebSocket socket(port(), protocol);
  EXPECT_EQ(socket.head().headers.at("sec-websocket-protocol"), "cedar.v1");  // never the key
  open(socket);
  socket.send(create("resp_0001"));
  EXPECT_EQ(read_until(socket, "response.done").back()["status"], "completed");
  // As a protocol it is for WebSockets only.
  EXPECT_EQ(ask_chat("Sec-WebSocket-Protocol: " + protocol + "\r\n").status, 401);
}

TEST_F(AccessTest, AResponseBelongsToItsKey) {
  add_key("anna", kAnna);
  add_key("bert", kBert);
  script_->decoder_step_us = 1000;
  answer_endlessly();
  start();
  WebSocket anna(port(), "cedar.v1", bearer(kAnna)), bert(port(), "cedar.v1", bearer(kBert));
  open(anna);
  open(bert);
  anna.send(create("resp_0001", R"("max_tokens":8000)"));
  read_until(anna, "response.content.delta");
  for (const char* message :
       {R"({"type":"response.resume","response_id":"resp_0001","last_seq":0})",
        R"({"type":"response.cancel","response_id":"resp_0001"})",
        R"({"type":"response.ack","response_id":"resp_0001","seq":1})"}) {
    bert.send(message);
    EXPECT_EQ(read_event(bert)["error"]["code"], "response_not_found") << message;
  }
  // The other key's ids are not even taken.
  bert.send(create("resp_0001", R"("max_tokens":2)"));
  EXPECT_EQ(read_event(bert)["type"], "response.created");
  EXPECT_EQ(read_until(bert, "response.done").back()["usage"]["completion_tokens"], 2);
  EXPECT_EQ(read_until(anna, "response.content.delta").back()["response_id"], "resp_0001");
  // Another connection of the same key may.
  WebSocket again(port(), "cedar.v1", bearer(kAnna));
  open(again);
  again.send(R"({"type":"response.resume","response_id":"resp_0001","last_seq":0})");
  EXPECT_EQ(read_event(again)["seq"], 1);
  again.send(R"({"type":"response.cancel","response_id":"resp_0001"})");
  EXPECT_EQ(read_until(again, "response.done").back()["status"], "cancelled");
}

constexpr const char* kPage = "Origin: https://page.example\r\n";

std::string preflight_text(const std::string& headers) {
  return "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Access-Control-Request-Method: POST\r\n"
         "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n\r\n";
}

TEST_F(AccessTest, CrossOriginRequestsAreOffUnlessConfigured) {
  start();
  EXPECT_EQ(ask(preflight_text(kPage)).status, 405);
  EXPECT_EQ(ask_chat(kPage).headers.count("access-control-allow-origin"), 0U);
}

// A browser sends such a request without asking first; that the page cannot read the answer saves no work.
TEST_F(AccessTest, PagesOfOtherSitesMakeTheServerWorkForNobody) {
  start();
  for (const char* origin : {"https://page.example", "null", "file://", "http://localhost:1",
                             "http://localhost.page.example", "localhost", "x://localhost", "",
                             "http://localhost\r\nOrigin: https://page.example"}) {
    const test::Reply reply = ask_chat("Origin: " + std::string(origin) + "\r\n");
    EXPECT_EQ(reply.status, 403) << origin;
    EXPECT_THAT(reply.body, HasSubstr("http.allowed_origins"));
  }
  for (const char* path : {"/v1/completions", "/tokenize", "/detokenize"}) {
    EXPECT_EQ(ask(test::post_text(path, "{}", kPage)).status, 403) << path;
  }
  EXPECT_EQ(ask_chat("Origin: http://localhost\r\n").status, 200);  // its own page
  EXPECT_EQ(ask_get("/v1/models", kPage).status, 200);
}

std::string with_host(const std::string& host) {
  return "POST /tokenize HTTP/1.1\r\nHost: " + host +
         "\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}";
}

// A site may make its own name point to this machine; its page is of the server's own origin then.
TEST_F(AccessTest, OnLoopbackOnlyNamesOfTheServerAreServed) {
  options_.http.allowed_hosts = {"cedar.example"};
  start();
  for (const char* host : {"localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:80", "127.1.2.3",
                           "[::1]", "[::1]:8080", "cedar.example", "Cedar.Example:443"}) {
    EXPECT_EQ(ask(with_host(host)).status, 200) << host;
  }
  for (const char* host : {"evil.example", "evil.example:8080", "localhost.evil.example",
                           "10.0.0.1", "127.0.0.1.evil.example", "[::2]", "[", "", "0.0.0.0"}) {
    const test::Reply reply = ask(with_host(host));
    EXPECT_EQ(reply.status, 403) << host;
    EXPECT_THAT(reply.body, HasSubstr("http.allowed_hosts"));
  }
  EXPECT_EQ(ask("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n").status, 403);
  EXPECT_EQ(ask("GET /health HTTP/1.0\r\n\r\n").status, 200);
}

TEST_F(AccessTest, AnyHostMayBeAllowed) {
  options_.http.allowed_hosts = {"*"};
  start();
  EXPECT_EQ(ask(with_host("evil.example")).status, 200);
}

TEST_F(AccessTest, WithKeysOrForTheNetworkEveryNameIsServed) {
  add_key("anna", kAnna);
  start();
  EXPECT_EQ(ask("GET /health HTTP/1.1\r\nHost: cedar.example\r\n\r\n").status, 200);
}

TEST_F(AccessTest, OnAllAddressesEveryNameIsServed) {
  options_.http.host = "0.0.0.0";
  start();
  EXPECT_EQ(ask(with_host("cedar.example")).status, 200);
}

TEST_F(AccessTest, ConfiguredOriginsMayUseTheApi) {
  add_key("anna", kAnna);
  options_.http.allowed_origins = {"https://page.example"};
  start();
  const test::Reply allowed = ask(preflight_text(kPage));  // which comes without a key
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.headers.count("content-length"), 0U);
  EXPECT_EQ(allowed.headers.at("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(allowed.headers.at("access-control-allow-methods"), "GET, HEAD, POST");
  EXPECT_EQ(allowed.headers.at("access-control-allow-headers"),
            "authorization,content-type,x-stainless-os");
  EXPECT_EQ(allowed.headers.at("vary"), "Origin");
  const test::Reply other = ask(preflight_text("Origin: https://evil.example\r\n"));
  EXPECT_EQ(other.status, 405);
  EXPECT_EQ(other.headers.count("access-control-allow-origin"), 0U);
  // Answers, streams, and errors from before anything was understood.
  for (const std::string& body : {user(), user(R"("stream":true)")}) {
    const test::Reply answer = ask_chat(kPage + bearer(kAnna), body);
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://page.example");
  }
  EXPECT_EQ(ask_chat(kPage).headers.at("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(ask_chat("Origin: https://page.example.evil\r\n" + bearer(kAnna))
                .headers.count("access-control-allow-origin"),
            0U);
  // A page that may not read answers may not open sockets either.
  EXPECT_EQ(WebSocket(port(), "cedar.v1", kPage + bearer(kAnna)).head().status, 101);
  EXPECT_EQ(WebSocket(port(), "cedar.v1", "Origin: https://evil.example\r\n" + bearer(kAnna))
                .head()
                .status,
            403);
}

TEST_F(AccessTest, AnyOriginMayBeAllowed) {
  options_.http.allowed_origins = {"*"};
  start();
  EXPECT_EQ(ask_chat(kPage).headers.at("access-control-allow-origin"), "https://page.example");
  EXPECT_EQ(ask_chat("").headers.count("access-control-allow-origin"), 0U);
  EXPECT_EQ(WebSocket(port(), "cedar.v1", kPage).head().status, 101);
}

TEST_F(AccessTest, CompressedBodiesAreRefusedByName) {
  start();
  const test::Reply refused = ask_chat("Content-Encoding: gzip\r\n");
  EXPECT_EQ(refused.status, 415);
  EXPECT_THAT(Json::parse(refused.body)["error"]["message"].get<std::string>(),
              HasSubstr("Content-Encoding"));
  EXPECT_EQ(ask_chat("Content-Encoding: identity\r\n").status, 200);
}

}  // namespace
}  // namespace cedar::gateway
