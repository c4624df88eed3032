#include "storage/segment_inspect.h"

#include "tests/storage/store_fixture.h"

namespace cedar::storage {
namespace {

using namespace test;
using testing::HasSubstr;

constexpr size_t kValue = 10'000;

class SegmentInspectTest : public testing::Test {
 protected:
  cedar::test::TempDirectory folder_;
  SegmentStoreOptions options_;

  void SetUp() override {
    options_.directory = folder_.path() + "/blocks";
    options_.identity = "a model";
    options_.value_bytes = kValue;
    options_.max_bytes = 8 << 20;
    options_.segment_bytes = 1 << 20;
    const auto store = open(options_);
    for (uint64_t i = 0; i < 150; ++i) ASSERT_TRUE(store->write(key_of(i), value_of(i, kValue)));
    ASSERT_TRUE(store->flush(60s).has_value());
  }
  void damage() {
    const std::string path = segment_paths(options_.directory).front();
    const auto file = SegmentFile::open(path, false);
    std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp((*file)->header().shape.slot_offset(2) + 5000);
    bytes.write("damage", 6);
  }
  void foreign_file() {
    std::ofstream(options_.directory + "/segment-00000000000000ff.seg") << "?";
  }
};

TEST_F(SegmentInspectTest, ListsSegmentsWhileAStoreWorks) {
  const auto store = open(options_);
  foreign_file();
  const auto segments = list_segments(options_.directory);
  ASSERT_TRUE(segments.has_value());
  ASSERT_EQ(segments->size(), 3u);
  EXPECT_EQ((*segments)[0].values + (*segments)[1].values, 150);
  EXPECT_TRUE((*segments)[0].finished);
  EXPECT_FALSE((*segments)[1].finished);  // being written to
  EXPECT_EQ((*segments)[0].header.identity, "a model");
  EXPECT_TRUE((*segments)[2].problem.has_value());
}

TEST_F(SegmentInspectTest, VerifyFindsWhatIsDamaged) {
  auto report = verify_segments(options_.directory, {});
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->values, 150);
  EXPECT_EQ(report->corrupt, 0);
  damage();
  foreign_file();
  report = verify_segments(options_.directory, {});
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->corrupt, 1);
  EXPECT_EQ(report->unusable, 1);
  EXPECT_THAT(report->findings, testing::Contains(HasSubstr("slot 2")));
  EXPECT_EQ(
      verify_segments(options_.directory, [](int64_t, int64_t) { return false; }).error().code,
      Errc::cancelled);
}

TEST_F(SegmentInspectTest, WhatAStoreLetsGoMeanwhileIsNoFinding) {
  const auto paths = segment_paths(options_.directory);
  ASSERT_EQ(paths.size(), 2u);
  const auto report = verify_segments(options_.directory, [&](int64_t done, int64_t) {
    if (done == 1) std::filesystem::remove(paths[1]);
    return true;
  });
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->unusable, 0);
  EXPECT_THAT(report->findings, testing::IsEmpty());
  EXPECT_GT(report->values, 0);
  // A link to what never was is one.
  std::filesystem::create_symlink(paths[1], options_.directory + "/segment-link.seg");
  EXPECT_EQ(verify_segments(options_.directory, {})->unusable, 1);
  EXPECT_TRUE(list_segments(options_.directory)->back().problem.has_value());
}

TEST_F(SegmentInspectTest, CollectRemovesWhatItIsToldTo) {
  foreign_file();
  CollectOptions collect;
  collect.dry_run = true;
  auto report = collect_segments(options_.directory, collect);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->removed.size(), 1u);
  EXPECT_EQ(segment_paths(options_.directory).size(), 3u);
  collect.dry_run = false;
  collect.max_bytes = 1 << 20;
  report = collect_segments(options_.directory, collect);
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->removed.size(), 2u);
  EXPECT_EQ(report->kept_bytes, bytes_on_disk(options_.directory));
  EXPECT_LE(report->kept_bytes, 1 << 20);
  // The newest are kept.
  const auto store = open(options_);
  EXPECT_TRUE(store->contains(key_of(149)));
  EXPECT_FALSE(store->contains(key_of(0)));
  EXPECT_EQ(collect_segments(options_.directory, collect).error().code, Errc::unavailable);
}

TEST_F(SegmentInspectTest, CollectByAge) {
  CollectOptions collect;
  collect.older_than_s = 3600;
  const auto young = collect_segments(options_.directory, collect);
  ASSERT_TRUE(young.has_value());
  EXPECT_TRUE(young->removed.empty());
  EXPECT_EQ(list_segments("/no/such/place").error().code, Errc::not_found);
}

}  // namespace
}  // namespace cedar::storage
