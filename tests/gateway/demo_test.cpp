// The demo model behind actors and gateway: real answers over every way in, and nothing held afterwards.

#include <fstream>

#include "tests/gateway/demo_fixture.h"

namespace cedar::gateway {
namespace {

using test::eventually;
using testing::HasSubstr;
using namespace std::chrono_literals;

struct Lookup {
  std::string name, message, want;
  std::vector<TokenId> ids, greedy;
};

/// The golden lookups of one turn: document and request as the user's message, and the record asked for.
std::vector<Lookup> golden_lookups() {
  std::ifstream in(std::string(CEDAR_SOURCE_DIR) + "/tests/golden/demo/prompts.json");
  std::vector<Lookup> lookups;
  for (const Json& record : Json::parse(in)) {
    const auto name = record["name"].get<std::string>();
    if (name.rfind("lookup_", 0) != 0) continue;
    const auto prompt = record["prompt"].get<std::string>();
    const std::string user = "<｜User｜>", assistant = "<｜Assistant｜>";
    const size_t begin = prompt.find(user) + user.size();
    lookups.push_back({name, prompt.substr(begin, prompt.find(assistant) - begin), record["want"],
                       record["ids"].get<std::vector<TokenId>>(),
                       record["greedy"].get<std::vector<TokenId>>()});
  }
  return lookups;
}

TEST_F(DemoTest, LookupsAtOnceAreAnsweredExactly) {
  const auto lookups = golden_lookups();
  ASSERT_EQ(lookups.size(), 12U);
  std::vector<std::unique_ptr<test::Socket>> sockets;
  for (const Lookup& lookup : lookups) {
    sockets.push_back(std::make_unique<test::Socket>(port()));
    sockets.back()->send(test::post_text("/v1/chat/completions", body(lookup.message)));
  }
  for (size_t i = 0; i < lookups.size(); ++i) {
    const auto reply = test::read_reply(*sockets[i]);
    ASSERT_TRUE(reply);
    const Json answer = Json::parse(reply->body);
    EXPECT_EQ(answer["choices"][0]["message"]["content"], lookups[i].want) << lookups[i].name;
    EXPECT_EQ(answer["usage"]["prompt_tokens"], lookups[i].ids.size());
  }
  EXPECT_TRUE(eventually([&] { return idle(); }));
}

TEST_F(DemoTest, CompletionsGiveTheGoldenIds) {
  for (const Lookup& lookup : golden_lookups()) {
    if (lookup.ids.size() > 700) continue;  // the long ones are in the test above
    const Json request{
        {"prompt", lookup.ids}, {"temperature", 0}, {"max_tokens", 32}, {"return_token_ids", true}};
    const auto reply = test::post(port(), "/v1/completions", request.dump());
    ASSERT_TRUE(reply);
    EXPECT_EQ(Json::parse(reply->body)["choices"][0]["token_ids"].get<std::vector<TokenId>>(),
              lookup.greedy)
        << lookup.name;
  }
}

TEST_F(DemoTest, EventStreamAndWebSocketGiveTheSameAnswer) {
  const Lookup lookup = golden_lookups()[3];
  const auto reply =
      test::post(port(), "/v1/chat/completions", body(lookup.message, R"("stream":true,)"));
  std::string streamed;
  for (const std::string& data : test::sse_data(reply->body)) {
    if (data == "[DONE]") break;
    const Json delta = Json::parse(data)["choices"][0]["delta"];
    if (delta.contains("content")) streamed += delta["content"].get<std::string>();
  }
  EXPECT_EQ(streamed, lookup.want);

  test::WebSocket socket(port());
  socket.send(R"({"type":"response.create","request":)" + body(lookup.message) + "}");
  std::string joined, type;
  while (type != "response.done") {
    const auto text = socket.read();
    ASSERT_TRUE(text);
    const Json event = Json::parse(*text);
    type = event["type"].get<std::string>();
    if (type == "response.content.delta") joined += event["delta"].get<std::string>();
  }
  EXPECT_EQ(joined, lookup.want);
}

TEST_F(DemoTest, LogprobsBelongToTheTokens) {
  const Lookup lookup = golden_lookups()[0];
  const Json answer =
      Json::parse(test::post(port(), "/v1/chat/completions",
                             body(lookup.message, R"("logprobs":true,"top_logprobs":3,)"))
                      ->body);
  std::string joined;
  for (const Json& entry : answer["choices"][0]["logprobs"]["content"]) {
    EXPECT_LE(entry["logprob"].get<double>(), 0);
    EXPECT_EQ(entry["top_logprobs"][0]["token"], entry["token"]);  // greedy: the best one
    EXPECT_EQ(entry["top_logprobs"].size(), 3U);
    joined += entry["token"].get<std::string>();
  }
  EXPECT_THAT(joined, HasSubstr(lookup.want));
}

TEST_F(DemoTest, ASeedMakesSamplingRepeatable) {
  const std::string request =
      R"({"prompt":"The quick","temperature":1.5,"max_tokens":12,"seed":77,"return_token_ids":true})";
  const auto ids = [&] {
    return Json::parse(
        test::post(port(), "/v1/completions", request)->body)["choices"][0]["token_ids"];
  };
  EXPECT_EQ(ids(), ids());
}

// B54 and B17 on the real engines: reading or writing, a client that leaves gives everything back.
TEST_F(DemoTest, AClientThatLeavesGivesEverythingBack) {
  const std::string endless =
      body("Hello", R"("stream":true,"ignore_eos":true,"max_tokens":8000,)");
  {
    test::Socket writing(port());
    writing.send(test::post_text("/v1/chat/completions", endless));
    ASSERT_TRUE(writing.take_until("content\":\"H"));
  }
  EXPECT_TRUE(eventually([&] { return idle(); }, 2s));
  std::string document;
  for (int i = 0; i < 1200; ++i) document += "ticket " + std::to_string(i) + " open mira oslo\n";
  {
    test::Socket reading(port());
    reading.send(test::post_text("/v1/chat/completions", body(document + "\nShow ticket 7")));
    ASSERT_TRUE(eventually([&] { return stats().encoder_requests == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return idle(); }, 5s));
  EXPECT_EQ(Json::parse(test::post(port(), "/v1/chat/completions", body("Hello"))
                            ->body)["choices"][0]["finish_reason"],
            "stop");
}

TEST_F(DemoTest, PromptsOverTheContextAreRefused) {
  std::string document;
  for (int i = 0; i < 3000; ++i) document += "ticket " + std::to_string(i) + " open mira oslo\n";
  const auto reply = test::post(port(), "/v1/chat/completions", body(document));
  EXPECT_EQ(reply->status, 400);
  EXPECT_EQ(Json::parse(reply->body)["error"]["param"], "messages");
}

}  // namespace
}  // namespace cedar::gateway
