// `cedar cache`: what it prints and with which status it ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "storage/segment_store.h"
#include "tests/support/program.h"
#include "tests/support/temp_directory.h"

namespace cedar {
namespace {

using test::run_program;
using testing::HasSubstr;
using testing::Not;

class CacheCommand : public testing::Test {
 protected:
  test::TempDirectory folder_;
  std::string directory_ = folder_.path() + "/blocks";

  void SetUp() override {
    auto store = open();
    ASSERT_TRUE(store.has_value()) << store.error().message();
    const std::vector<std::byte> value(5000, std::byte{7});
    for (uint8_t i = 1; i <= 40; ++i) {
      storage::StoreKey key;
      key.bytes.fill(i);
      ASSERT_TRUE((*store)->write(key, value));
    }
    ASSERT_TRUE((*store)->flush(std::chrono::seconds(60)).has_value());
  }
  Result<std::unique_ptr<storage::SegmentStore>> open() {
    storage::SegmentStoreOptions options;
    options.directory = directory_;
    options.identity = "model 1234, layout 5678";
    options.value_bytes = 5000;
    options.max_bytes = 4 << 20;
    options.segment_bytes = 128 << 10;
    return storage::SegmentStore::open(options);
  }
  test::ProgramResult cache(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {CEDAR_PROGRAM, "cache"});
    return run_program(arguments);
  }
};

TEST_F(CacheCommand, ShowsWhatIsThere) {
  const auto list = cache({"ls", directory_});
  EXPECT_EQ(list.status, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr("segment-0000000000000001.seg"));
  EXPECT_THAT(list.out, HasSubstr("finished"));
  const auto sums = cache({"stat", directory_});
  EXPECT_EQ(sums.status, 0) << sums.err;
  EXPECT_THAT(sums.out, HasSubstr("values        40 (0 torn slots)"));
  EXPECT_THAT(sums.out, HasSubstr("200,000 of values"));
  EXPECT_THAT(sums.out, HasSubstr("model 1234, layout 5678"));
}

TEST_F(CacheCommand, VerifyEndsWithOneWhenSomethingIsDamaged) {
  const auto good = cache({"verify", directory_});
  EXPECT_EQ(good.status, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr("40 values, 200,000 bytes: 0 corrupt"));
  std::fstream file(directory_ + "/segment-0000000000000001.seg",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096 + 1000);
  file.write("x", 1);
  file.close();
  const auto bad = cache({"verify", directory_});
  EXPECT_EQ(bad.status, 1);
  EXPECT_THAT(bad.out, HasSubstr("slot 0: the value's checksum differs"));
  EXPECT_THAT(bad.out, HasSubstr("1 corrupt"));
}

TEST_F(CacheCommand, CollectsOnlyWhereNoStoreIsAtWork) {
  const auto look = cache({"gc", directory_, "--max-mib", "0", "--dry-run"});
  EXPECT_EQ(look.status, 0) << look.err;
  EXPECT_THAT(look.out, HasSubstr("would remove segment-0000000000000001.seg"));
  {
    const auto store = open();
    ASSERT_TRUE(store.has_value());
    const auto refused = cache({"gc", directory_, "--max-mib", "0"});
    EXPECT_EQ(refused.status, 1);
    EXPECT_THAT(refused.err, HasSubstr("in use by another process"));
  }
  const auto collected = cache({"gc", directory_, "--max-mib", "0"});
  EXPECT_EQ(collected.status, 0) << collected.err;
  EXPECT_THAT(cache({"ls", directory_}).out, Not(HasSubstr(".seg")));
}

TEST_F(CacheCommand, SaysWhatIsWrong) {
  const auto none = cache({"ls", folder_.path() + "/none"});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("no directory " + folder_.path() + "/none"));
  EXPECT_EQ(cache({}).status, 2);
  EXPECT_EQ(cache({"gc", directory_, "--max-mib", "-1"}).status, 2);
}

}  // namespace
}  // namespace cedar
