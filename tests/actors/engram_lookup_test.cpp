#include "actors/engram_lookup.h"

#include <gtest/gtest.h>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/send.hpp>

#include <thread>

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;

/// Row r of layer l is filled with l + r.
class CountingSource final : public engine::EngramSource {
 public:
  Status fetch(LayerId layer, std::span<const int64_t> rows, uint8_t* packed) override {
    if (layer == 9) std::this_thread::sleep_for(200ms);
    for (int64_t row : rows) {
      if (row < 0) return make_error(Errc::invalid_argument, "row " + std::to_string(row));
      for (int i = 0; i < 33; ++i) *packed++ = static_cast<uint8_t>(layer + row);
    }
    return {};
  }
};

class EngramLookupTest : public testing::Test {
 protected:
  caf::actor_system_config config_;
  caf::actor_system system_{config_};
  EngramActor actor_ =
      system_.spawn<EngramLookup, caf::detached>(std::make_shared<CountingSource>(), 33);
  std::shared_ptr<engine::EngramSource> source_ = engram_source_of(system_, actor_, 33, 50ms);
  std::vector<uint8_t> packed_ = std::vector<uint8_t>(99);

  void TearDown() override {
    caf::anon_send_exit(actor_, caf::exit_reason::user_shutdown);
    destroy(actor_);
    source_.reset();
  }
};

TEST_F(EngramLookupTest, TheActorServesWhatItsSourceHolds) {
  const std::vector<int64_t> rows{5, 0, 17};
  ASSERT_TRUE(source_->fetch(2, rows, packed_.data()));
  std::vector<uint8_t> expected(99);
  ASSERT_TRUE(CountingSource().fetch(2, rows, expected.data()));
  EXPECT_EQ(packed_, expected);
  EXPECT_TRUE(source_->fetch(2, {}, packed_.data()));
}

TEST_F(EngramLookupTest, ErrorsKeepTheirCodeAndContext) {
  const Status status = source_->fetch(2, std::vector<int64_t>{-4}, packed_.data());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::invalid_argument);
  EXPECT_EQ(status.error().context, "row -4");
}

TEST_F(EngramLookupTest, ASlowTableMeetsTheDeadline) {
  const Status status = source_->fetch(9, std::vector<int64_t>{1}, packed_.data());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::deadline_exceeded);
}

TEST_F(EngramLookupTest, ADeadTableIsUnavailable) {
  caf::anon_send_exit(actor_, caf::exit_reason::kill);
  Status status;
  for (int i = 0; i < 100 && status; ++i) {
    status = source_->fetch(2, std::vector<int64_t>{1}, packed_.data());
  }
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::unavailable);
}

}  // namespace
}  // namespace cedar::actors
