#pragma once
// Reads prompts whose first blocks are known, and answers them: what tests of cached prefixes share.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/decode_engine.h"
#include "engine/prefill_engine.h"
#include "tests/support/test_model.h"

namespace cedar::engine {

using Tokens = std::vector<TokenId>;
using Bytes = std::vector<std::byte>;

inline Tokens prompt_of(int64_t length, uint32_t seed = 1) {
  std::mt19937 random(seed);
  Tokens prompt{0};
  while (static_cast<int64_t>(prompt.size()) < length) {
    prompt.push_back(static_cast<TokenId>(random() % 1200));
  }
  return prompt;
}

struct Read {
  std::vector<Bytes> blocks;  // the last one may be open
  Bytes state;
  int64_t rows = 0;  // computed
  int64_t cached = 0;
  int64_t replayed = 0;
  ResumeKind resume = ResumeKind::none;
  Position windows_at = 0;
  Bytes windows;  // of the state that was kept there
};

/// What is known of a prompt before it is read.
struct Known {
  const std::vector<Bytes>& blocks;
  int64_t hit = 0;  // of the blocks, the leading ones
  const Bytes* windows = nullptr;
};

struct Answer {
  Tokens ids;
  std::vector<float> logprobs;
  std::map<int64_t, Bytes> blocks;  // shown while answering
};

class PrefixCache : public ::testing::Test {
 protected:
  void use(ReplayMode mode, int64_t chunk = 512) { use(mode, chunk, mode); }
  void use(ReplayMode replay, int64_t chunk, ReplayMode resume) {
    EngineOptions options = testing::test_options();
    options.replay = replay;
    options.resume = resume;
    options.prefill_chunk_tokens = chunk;
    const auto model = testing::mini_model();
    auto prefill = PrefillEngine::create(model, local_engram_source(model), options);
    auto decode = DecodeEngine::create(model, local_engram_source(model), options);
    ASSERT_TRUE(prefill.has_value() && decode.has_value());
    prefill_ = std::move(*prefill);
    decode_ = std::move(*decode);
    decode_->on_block([this](RequestId, int64_t index, std::span<const std::byte> bytes) {
      shown_[index].assign(bytes.begin(), bytes.end());
    });
    block_ = model->layout.block_tokens;
  }

  Read read(const Tokens& prompt, const std::vector<Bytes>& known = {}, int64_t hit = 0) {
    return read_with(prompt, {known, hit, nullptr});
  }
  Read read_with(const Tokens& prompt, const Known& known) {
    const RequestId id{++last_id_};
    const int64_t hit = known.hit;
    const Status submitted = prefill_->submit({id, prompt, images_, hit, keep_});
    EXPECT_TRUE(submitted.has_value()) << submitted.error().message();
    import(id, known);
    Read read;
    int64_t ready = 0;
    while (!prefill_->idle()) {
      const auto events = prefill_->step();
      EXPECT_TRUE(events.has_value());
      for (const PrefillEvent& event : *events) {
        EXPECT_GE(event.blocks_ready, hit);
        EXPECT_GE(event.computed, hit * block_);
        ready = event.blocks_ready;
        read.rows += event.rows;
        read.cached = event.cached;
        read.replayed = event.replayed;
        read.resume = event.resume;
        read.windows_at = event.windows_at;
      }
    }
    return collect(id, ready, std::move(read));
  }
  void import(RequestId id, const Known& known) {
    if (known.hit == 0) return;
    EXPECT_TRUE(prefill_->idle());
    // In any order.
    for (int64_t i = known.hit - 1; i >= 0; --i) {
      const Status status = prefill_->import_block(id, i, known.blocks[static_cast<size_t>(i)]);
      EXPECT_TRUE(status.has_value()) << status.error().message();
    }
    if (known.windows != nullptr) {
      const Status status = prefill_->import_windows(id, std::move(*parse_handoff(*known.windows)));
      EXPECT_TRUE(status.has_value()) << status.error().message();
    }
    const Status status = prefill_->resume(id, known.hit);
    EXPECT_TRUE(status.has_value()) << status.error().message();
  }
  Read collect(RequestId id, int64_t ready, Read read = {}) {
    for (int64_t i = 0; i < ready; ++i) {
      const auto bytes = prefill_->block(id, i);
      read.blocks.emplace_back(bytes.begin(), bytes.end());
    }
    // The state for the next turn does not depend on that of this one.
    read.state = bytes_of(prefill_->take_handoff(id));
    if (read.windows_at > 0) read.windows = bytes_of(prefill_->take_windows(id));
    EXPECT_FALSE(prefill_->take_windows(id).has_value());
    prefill_->release(id);
    return read;
  }
  static Bytes bytes_of(const Result<Handoff>& state) {
    EXPECT_TRUE(state.has_value()) << state.error().message();
    Bytes bytes(static_cast<size_t>(serialised_bytes(*state)));
    serialise(*state, bytes);
    return bytes;
  }

  Answer answer(const Tokens& prompt, const Read& read, int64_t tokens) {
    shown_.clear();
    DecodeRequest request;
    request.id = RequestId{++last_id_};
    request.prompt = prompt;
    request.max_new_tokens = tokens;
    request.sampling.temperature = 0;
    request.sampling.logprobs = 0;
    request.ignore_eos = true;
    EXPECT_TRUE(decode_->reserve(request).has_value());
    for (size_t i = 0; i < read.blocks.size(); ++i) {
      EXPECT_TRUE(decode_->import_block(request.id, static_cast<int64_t>(i), read.blocks[i]));
    }
    EXPECT_TRUE(decode_->start(request.id, std::move(*parse_handoff(read.state))).has_value());
    Answer answer;
    while (!decode_->idle()) {
      const auto events = decode_->step();
      EXPECT_TRUE(events.has_value());
      for (const TokenEvent& event : *events) {
        answer.ids.push_back(event.token.token);
        answer.logprobs.push_back(event.token.logprob.value_or(0));
      }
    }
    answer.blocks = std::move(shown_);
    return answer;
  }

  /// Rows of the last block beyond the prompt's end are whatever the page held before.
  void expect_same_blocks(const Read& got, const Read& want, const Tokens& prompt) {
    const auto whole = static_cast<size_t>(static_cast<int64_t>(prompt.size()) / block_);
    ASSERT_EQ(got.blocks.size(), want.blocks.size());
    for (size_t i = 0; i < whole; ++i)
      EXPECT_TRUE(got.blocks[i] == want.blocks[i]) << "block " << i;
  }

  std::unique_ptr<PrefillEngine> prefill_;
  std::unique_ptr<DecodeEngine> decode_;
  std::map<int64_t, Bytes> shown_;
  std::vector<ImageRows> images_;
  bool keep_ = false;  // windows for the next turn
  int64_t block_ = 0;
  uint64_t last_id_ = 0;
};

}  // namespace cedar::engine
