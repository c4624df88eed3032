#pragma once

#include "core/thread_pool.h"
#include "engine/loaded_model.h"
#include "engine/structured/constraints.h"
#include "tests/gateway/server_fixture.h"

namespace cedar::gateway {

/// The demo model behind actors and gateway, on a free port.
class DemoTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ThreadPool pool(2);
    Arena arena{Device{}};
    kernels::KernelContext context;
    context.pool = &pool;
    context.arena = &arena;
    auto model = engine::load_model(std::string(CEDAR_SOURCE_DIR) + "/config/demo",
                                    model::Role::all, context);
    ASSERT_TRUE(model) << model.error().message();
    model_ = *model;
  }
  static void TearDownTestSuite() { model_.reset(); }

  void SetUp() override {
    actors::SystemOptions options;
    options.engine.threads = 2;
    options.engine.max_sequences = 4;
    options.engine.constraints =
        engine::structured::Constraints::create(demo_card().tokenizer, 4096, 1);
    GatewayOptions gateway_options;
    gateway_options.http.port = 0;
    ModelCard card = demo_card();
    configure(options, gateway_options, card);
    auto system = actors::System::start(model_, options);
    ASSERT_TRUE(system) << system.error().message();
    system_ = std::move(*system);
    ASSERT_TRUE(
        test::eventually([&] { return stats().ready && stats().decoder_total_blocks > 0; }));
    free_blocks_ = stats().decoder_free_blocks;
    auto gateway = Gateway::start(gateway_options, card, system_->client(), metrics_);
    ASSERT_TRUE(gateway) << gateway.error().message();
    gateway_ = std::move(*gateway);
  }
  void TearDown() override {
    gateway_->begin_stop(std::chrono::milliseconds(0));
    system_->drain(std::chrono::milliseconds(0));
    gateway_->finish_stop(std::chrono::milliseconds(200));
    system_.reset();
    gateway_.reset();
  }

  /// What a test wants otherwise.
  virtual void configure(actors::SystemOptions&, GatewayOptions&, ModelCard&) {}

  actors::Stats stats() const { return system_->client().stats(); }
  bool idle() const {
    const actors::Stats s = stats();
    return s.running == 0 && s.encoder_requests == 0 && s.decoder_sequences == 0 &&
           s.decoder_free_blocks == free_blocks_ && s.encoder_free_blocks == free_blocks_;
  }
  static std::string body(const std::string& message, const std::string& fields = {}) {
    return Json{{"messages", Json::array({Json{{"role", "user"}, {"content", message}}})}}
        .dump()
        .insert(1, R"("temperature":0,)" + fields);
  }
  uint16_t port() const { return gateway_->port(); }

  static inline std::shared_ptr<const engine::LoadedModel> model_;
  monitoring::Metrics metrics_;
  std::unique_ptr<actors::System> system_;
  std::unique_ptr<Gateway> gateway_;
  int64_t free_blocks_ = 0;
};

}  // namespace cedar::gateway
