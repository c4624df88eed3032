// Thousands of damaged inputs, the same ones on every run: a reader may refuse them, with a reason,
// and never crash.

#include <gtest/gtest.h>

#include "model/model_config.h"
#include "tests/fuzz/header_mutator.h"
#include "tests/fuzz/safetensors_invariants.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_directory.h"

namespace cedar {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(SafetensorsProperty, DamagedHeadersAreRefusedOrConsistent) {
  const std::string whole = test::safetensors_file({{"a", "U8", {1}, "x"},
                                                    test::zeros("b", "F32", {2, 3}),
                                                    test::zeros("c.weight", "F8_E4M3", {4, 4}),
                                                    test::zeros("c.scale", "F8_E8M0", {1, 1}),
                                                    test::zeros("empty", "BF16", {0}),
                                                    test::zeros("d", "I64", {2})});
  ASSERT_TRUE(test::check_safetensors(bytes_of(whole)));
  test::HeaderMutator mutator(1);
  int accepted = 0;
  constexpr int kRounds = 20'000;
  for (int round = 0; round < kRounds; ++round) {
    accepted += test::check_safetensors(bytes_of(mutator.mutate_file(whole)));
  }
  // Some changes are harmless (a renamed tensor); if none were, the mutations would be too coarse
  // to test much.
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, kRounds / 2);
}

TEST(SafetensorsProperty, EveryTruncationIsRefused) {
  const std::string whole =
      test::safetensors_file({test::zeros("a", "F32", {5}), test::zeros("b", "BF16", {3})});
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(test::check_safetensors(bytes_of(whole.substr(0, length)))) << length;
  }
}

TEST(SafetensorsProperty, RandomBytesAreRefused) {
  std::mt19937 random(2);
  for (int round = 0; round < 5'000; ++round) {
    std::string noise(random() % 64, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    if (round % 2 == 0 && noise.size() > 8) std::fill(noise.begin() + 1, noise.begin() + 8, '\0');
    test::check_safetensors(bytes_of(noise));
  }
}

TEST(ConfigProperty, DamagedConfigsAreRefusedOrPlannable) {
  const std::string whole =
      test::read_file(std::string(CEDAR_SOURCE_DIR) + "/tests/golden/mini/config.json");
  test::HeaderMutator mutator(3);
  int accepted = 0;
  for (int round = 0; round < 3'000; ++round) {
    const auto config = model::parse_model_config(mutator.mutate(whole));
    accepted += config.has_value();
    if (!config) {
      EXPECT_EQ(config.error().code, Errc::invalid_config);
      EXPECT_FALSE(config.error().context.empty());
    }
  }
  EXPECT_GT(accepted, 10);
}

}  // namespace
}  // namespace cedar
