#include "model/kv_layout.h"

#include <gtest/gtest.h>

namespace cedar::model {
namespace {

KvLayout layout_of(const std::string& directory) {
  const ModelConfig config =
      load_model_config(std::string(CEDAR_SOURCE_DIR) + "/" + directory).value();
  return make_kv_layout(config, make_layer_plan(config).value());
}

TEST(KvLayout, ReleaseBlockByByte) {
  const KvLayout layout = layout_of("tests/golden/release");
  EXPECT_EQ(layout.block_tokens, 128);
  EXPECT_EQ(layout.main_row_bytes, 288);
  EXPECT_EQ(layout.index_row_bytes, 68);
  EXPECT_EQ(layout.window_row_bytes, 528);
  EXPECT_EQ(layout.block_bytes, 113'920);
  EXPECT_EQ(layout.bytes_per_token(), 890.0);

  ASSERT_EQ(layout.sources.size(), 4u);
  const LayerId layers[] = {2, 8, 14, 20};
  const int64_t main_offsets[] = {0, 22'784, 45'568, 68'352};
  const int64_t index_offsets[] = {18'432, 41'216, 64'000, 105'216};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.sources[i].layer, layers[i]);
    EXPECT_EQ(layout.sources[i].ratio, i < 3 ? 2 : 1);
    EXPECT_EQ(layout.sources[i].rows_per_block, i < 3 ? 64 : 128);
    EXPECT_EQ(layout.sources[i].main_offset, main_offsets[i]);
    EXPECT_EQ(layout.sources[i].index_offset, index_offsets[i]);
  }
}

TEST(KvLayout, MiniAndDemo) {
  const KvLayout mini = layout_of("tests/golden/mini");
  EXPECT_EQ(mini.block_tokens, 36);
  EXPECT_EQ(mini.main_row_bytes, 54);
  EXPECT_EQ(mini.index_row_bytes, 17);
  EXPECT_EQ(mini.window_row_bytes, 99);
  EXPECT_EQ(mini.bytes_per_token(), 106.5);

  const KvLayout demo = layout_of("config/demo");
  EXPECT_EQ(demo.block_tokens, 64);
  EXPECT_EQ(demo.bytes_per_token(), (72 + 34) * (0.5 + 0.5 + 1));
}

TEST(KvLayout, SectionsFollowEachOtherWithoutHoles) {
  for (const char* directory : {"tests/golden/release", "tests/golden/mini", "config/demo"}) {
    const KvLayout layout = layout_of(directory);
    int64_t at = 0;
    for (const KvSourceLayout& source : layout.sources) {
      EXPECT_EQ(source.main_offset, at);
      EXPECT_EQ(source.rows_per_block * source.ratio, layout.block_tokens);
      at += source.rows_per_block * layout.main_row_bytes;
      EXPECT_EQ(source.index_offset, at);
      at += source.rows_per_block * layout.index_row_bytes;
    }
    EXPECT_EQ(layout.block_bytes, at) << directory;
  }
}

}  // namespace
}  // namespace cedar::model
