#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "actors/system.h"
#include "actors/system_impl.h"
#include "gateway/field_reader.h"
#include "gateway/gateway.h"
#include "tests/gateway/cards.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_engines.h"
#include "tests/support/socket_client.h"

namespace cedar::gateway {

/// A gateway on a free port over real actors and scripted engines.
class ServerTest : public testing::Test {
 protected:
  std::shared_ptr<test::EngineScript> script_ = std::make_shared<test::EngineScript>();
  actors::RouterOptions router_;
  actors::LocalStagesOptions stages_;
  GatewayOptions options_;
  ModelCard card_ = demo_card();
  std::shared_ptr<monitoring::Metrics> metrics_ = std::make_shared<monitoring::Metrics>();
  std::unique_ptr<actors::System> system_;
  std::unique_ptr<Gateway> gateway_;

  ServerTest() {
    script_->block_tokens = 64;
    script_->blocks = 4096;
    script_->chunk_tokens = 512;
    script_->sequences = 64;
    answer_with("Hello there, friend.");
    options_.http.port = 0;
    options_.http.max_body_bytes = 1 << 20;
  }

  void TearDown() override {
    if (!system_) return;
    if (gateway_) gateway_->begin_stop(std::chrono::milliseconds(0));
    system_->drain(std::chrono::milliseconds(0));
    if (gateway_) gateway_->finish_stop(std::chrono::milliseconds(200));
    system_.reset();
    gateway_.reset();
  }

  /// The model's output for every request, then the end token.
  void answer_with(const std::string& text) { answer_with(card_.tokenizer->encode(text)); }
  void answer_with(std::vector<TokenId> ids) {
    script_->answer = [ids](const std::vector<TokenId>&) { return ids; };
  }
  void answer_endlessly() {
    answer_with(std::vector<TokenId>(200000, card_.tokenizer->encode("word ")[0]));
  }

  void start() {
    actors::SystemOptions system;
    system.metrics = router_.metrics = metrics_;
    auto impl = std::make_unique<actors::System::Impl>(system);
    stages_.encoder = {script_->sequences, script_->blocks, script_->block_tokens};
    stages_.decoder = stages_.encoder;
    router_.tick = std::chrono::milliseconds(5);
    impl->start_router(router_, stages_,
                       detached_stages(test::encoder_factory(script_, impl->memory),
                                       test::decoder_factory(script_), *impl));
    system_ = std::make_unique<actors::System>(std::move(impl));
    ASSERT_TRUE(test::eventually([&] { return system_->client().stats().ready; }));
    auto gateway = Gateway::start(options_, card_, system_->client(), *metrics_);
    ASSERT_TRUE(gateway) << gateway.error().message();
    gateway_ = std::move(*gateway);
  }

  uint16_t port() const { return gateway_->port(); }
  std::optional<test::Reply> post(std::string_view path, std::string_view body) {
    return test::post(port(), path, body);
  }
  std::optional<test::Reply> chat(std::string_view body) {
    return post("/v1/chat/completions", body);
  }

  /// No request holds anything.
  bool idle() {
    const actors::Stats stats = system_->client().stats();
    return stats.running == 0 && stats.queued == 0 && stats.encoder_requests == 0 &&
           stats.decoder_sequences == 0 && stats.decoder_free_blocks == script_->blocks &&
           stats.encoder_free_blocks == script_->blocks && stats.live_actors == 4;
  }

  static std::string user(const std::string& fields = {}) {
    return R"({"messages":[{"role":"user","content":"Hi"}])" +
           (fields.empty() ? "" : "," + fields) + "}";
  }
};

}  // namespace cedar::gateway
