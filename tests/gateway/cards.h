#pragma once

#include <gtest/gtest.h>

#include <string>

#include "gateway/model_card.h"

namespace cedar::gateway {

/// The demo model's text side.
inline ModelCard demo_card() {
  static const std::shared_ptr<const model::Tokenizer> tokenizer = [] {
    auto loaded =
        model::Tokenizer::load(std::string(CEDAR_SOURCE_DIR) + "/config/demo/tokenizer.json");
    EXPECT_TRUE(loaded) << loaded.error().message();
    return loaded ? *loaded : nullptr;
  }();
  ModelCard card;
  card.name = "demo";
  card.aliases = {"deepseek-flash"};
  card.tokenizer = tokenizer;
  card.vocab_size = 4096;
  card.context_tokens = 16384;
  card.default_max_tokens = 4096;
  card.default_thinking = false;
  card.fingerprint = "fp-test";
  card.created = 1789000000;
  return card;
}

}  // namespace cedar::gateway
