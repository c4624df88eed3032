// Mutated request bodies: each is accepted or refused with 4xx, and nothing crashes.

#include <gtest/gtest.h>

#include "tests/gateway/cards.h"
#include "tests/gateway/mutator.h"
#include "tests/gateway/request_fuzz.h"

namespace cedar::gateway {
namespace {

const char* const kSeeds[] = {
    R"({"model":"demo","messages":[{"role":"system","content":"S"},{"role":"user","content":"Hi"}],)"
    R"("temperature":0.7,"top_p":0.9,"max_tokens":5,"stream":true,"stop":["a","b"],"seed":3})",
    R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url",)"
    R"("image_url":{"url":"data:x"}}]}],"logprobs":true,"top_logprobs":2,"n":2})",
    R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function",)"
    R"("function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"r"}],)"
    R"("tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}],)"
    R"("tool_choice":"auto","response_format":{"type":"json_object"},"thinking":{"type":"enabled"}})",
    R"({"prompt":[0,5,9],"logit_bias":{"5":1.5},"echo":true,"stream_options":{"include_usage":true}})",
    R"({"prompt":"once upon","reasoning_effort":"max","chat_template_kwargs":{"thinking":false}})",
};

TEST(RequestFuzz, MutatedBodiesAreAcceptedOrRefusedWith4xx) {
  const ModelCard card = demo_card();
  Mutator mutator(20260101);
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string body = mutator.mutate(kSeeds[static_cast<size_t>(i) % std::size(kSeeds)]);
    const int status = check_body(body, card, i % 2 == 0);
    accepted += status == 0 ? 1 : 0;
    ASSERT_TRUE(status == 0 || (status >= 400 && status < 500)) << status << ": " << body;
  }
  EXPECT_GT(accepted, 500);  // the mutations are not all nonsense
}

TEST(RequestFuzz, TheSeedsThemselvesAreFine) {
  const ModelCard card = demo_card();
  EXPECT_EQ(check_body(kSeeds[0], card, true), 0);
  EXPECT_EQ(check_body(kSeeds[1], card, true), 400);  // an image
  EXPECT_EQ(check_body(kSeeds[2], card, true), 0);
  EXPECT_EQ(check_body(kSeeds[3], card, false), 0);
  EXPECT_EQ(check_body(kSeeds[4], card, false), 0);
}

}  // namespace
}  // namespace cedar::gateway
