#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "actors/system.h"
#include "actors/system_impl.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/fake_engines.h"

namespace cedar::actors {

/// A whole actor system over scripted engines.
class SystemTest : public testing::Test {
 protected:
  std::shared_ptr<test::EngineScript> script_ = std::make_shared<test::EngineScript>();
  RouterOptions router_;
  LocalStagesOptions stages_;
  std::unique_ptr<System> system_;
  std::shared_ptr<LoadBoard> board_;

  void start() {
    auto impl = std::make_unique<System::Impl>(SystemOptions{});
    stages_.encoder = {script_->sequences, script_->blocks, script_->block_tokens};
    stages_.decoder = stages_.encoder;
    router_.tick = std::chrono::milliseconds(5);
    board_ = impl->board;
    impl->start_router(router_, stages_,
                       detached_stages(test::encoder_factory(script_, impl->memory),
                                       test::decoder_factory(script_), *impl));
    system_ = std::make_unique<System>(std::move(impl));
    ASSERT_TRUE(test::eventually([&] { return client().stats().ready; }));
    ASSERT_TRUE(test::eventually([&] { return idle(); }));
  }

  Client& client() { return system_->client(); }

  /// Nothing is held anywhere, and no actor but the router, the stages and who starts them lives.
  bool idle() {
    const Stats stats = client().stats();
    return stats.running == 0 && stats.queued == 0 && stats.encoder_requests == 0 &&
           stats.encoder_queued_tokens == 0 && stats.encoder_free_blocks == script_->blocks &&
           stats.decoder_sequences == 0 && stats.decoder_free_blocks == script_->blocks &&
           stats.live_actors == 4;
  }

  static GenerateRequest request(size_t prompt_tokens, int64_t max_new_tokens = 100) {
    GenerateRequest request;
    request.decode.prompt.resize(prompt_tokens);
    std::iota(request.decode.prompt.begin(), request.decode.prompt.end(), 10);
    request.decode.max_new_tokens = max_new_tokens;
    return request;
  }

  /// An answer that never ends by itself.
  void endless_answers() {
    script_->answer = [](const std::vector<TokenId>&) { return std::vector<TokenId>(100000, 7); };
  }
};

}  // namespace cedar::actors
