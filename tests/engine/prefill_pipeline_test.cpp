// The encoder layers cut into ranges: every cut gives the bytes of one engine, with chunks in flight.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "engine/decode_engine.h"
#include "engine/prefill_engine.h"
#include "engine/prefill_queue.h"
#include "engine/prefill_rank.h"
#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

using Tokens = std::vector<TokenId>;
using Bytes = std::vector<std::byte>;
using Model = std::shared_ptr<const LoadedModel>;

/// What a decoder gets of one prompt.
struct Read {
  std::vector<Bytes> blocks;
  Bytes state;
  friend bool operator==(const Read&, const Read&) = default;
};

Bytes bytes_of(const Handoff& handoff) {
  Bytes bytes(static_cast<size_t>(serialised_bytes(handoff)));
  serialise(handoff, bytes);
  return bytes;
}

Bytes copy_of(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

EngineOptions options_of(int64_t chunk_tokens, ReplayMode mode = ReplayMode::bounded) {
  EngineOptions options = testing::test_options();
  options.prefill_chunk_tokens = chunk_tokens;
  options.replay = mode;
  return options;
}

std::map<RequestId, Read> read_whole(const Model& model, const EngineOptions& options,
                                     const std::vector<Tokens>& prompts) {
  auto engine = std::move(*PrefillEngine::create(model, local_engram_source(model), options));
  std::map<RequestId, Read> reads;
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(engine->submit({RequestId{i + 1}, prompts[i], {}}).has_value());
  }
  while (!engine->idle()) {
    const auto events = engine->step();
    EXPECT_TRUE(events.has_value()) << events.error().message();
    if (!events) return reads;
    for (const PrefillEvent& event : *events) {
      if (!event.finished) continue;
      Read& read = reads[event.id];
      for (int64_t b = 0; b < event.blocks_ready; ++b) {
        read.blocks.push_back(copy_of(engine->block(event.id, b)));
      }
      read.state = bytes_of(*engine->take_handoff(event.id));
    }
  }
  return reads;
}

/// Ranks in one process. Between two of them chunks wait, so that a later chunk of a prompt enters the first rank while an
/// earlier one has not left the last.
class Pipeline {
 public:
  Pipeline(const std::string& directory, const std::vector<LayerId>& cuts,
           const EngineOptions& options)
      : options_(options) {
    Runtime runtime{EngineOptions{}};
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      auto model = load_model(directory, model::Role::encoder, runtime.context(), {},
                              model::LayerRange{cuts[i], cuts[i + 1]});
      EXPECT_TRUE(model.has_value()) << model.error().message();
      auto rank = PrefillRank::create(*model, local_engram_source(*model), options);
      EXPECT_TRUE(rank.has_value()) << rank.error().message();
      ranks_.push_back(std::move(*rank));
    }
    queues_.resize(ranks_.size());
  }

  std::map<RequestId, Read> read(const std::vector<Tokens>& prompts, size_t depth) {
    PrefillQueue queue(ranks_.front()->model().config);
    for (size_t i = 0; i < prompts.size(); ++i) queue.add({RequestId{i + 1}, prompts[i], {}});
    std::map<RequestId, Read> reads;
    size_t in_flight = 0;
    while (!queue.idle() || in_flight > 0) {
      // The first rank as often as it may, each later one seldom: chunks pile up.
      while (!queue.idle() && in_flight < depth) {
        PrefillQueue::Next next = queue.next(options_.prefill_chunk_tokens);
        EXPECT_TRUE(step(0, std::move(next.chunk), next.images, {}));
        ++in_flight;
      }
      for (size_t i = ranks_.size(); i-- > 1;) {
        if (queues_[i].empty()) continue;
        Waiting waiting = std::move(queues_[i].front());
        queues_[i].pop_front();
        EXPECT_TRUE(step(i, std::move(waiting.chunk), {}, waiting.bytes));
        break;
      }
      while (!done_.empty()) {
        collect(done_.front(), reads);
        done_.pop_front();
        --in_flight;
      }
    }
    // Not before: rows of an open block that nobody has written are those of its page's last owner.
    for (const auto& [id, read] : reads) {
      for (const auto& rank : ranks_) rank->release(id);
    }
    return reads;
  }

  PrefillRank& rank(size_t i) { return *ranks_[i]; }

 private:
  struct Waiting {
    PrefillChunk chunk;
    Bytes bytes;
  };

  bool step(size_t i, PrefillChunk chunk, const ChunkImages& images, const Bytes& in) {
    EXPECT_LE(static_cast<int64_t>(in.size()), ranks_[i]->max_in_bytes());
    Bytes out(static_cast<size_t>(ranks_[i]->max_out_bytes()));
    const auto bytes = ranks_[i]->run(chunk, images, in, out);
    EXPECT_TRUE(bytes.has_value()) << bytes.error().message();
    if (!bytes) return false;
    if (i + 1 == ranks_.size()) {
      EXPECT_EQ(*bytes, 0);
      done_.push_back(std::move(chunk));
    } else {
      out.resize(static_cast<size_t>(*bytes));
      queues_[i + 1].push_back({std::move(chunk), std::move(out)});
    }
    return true;
  }

  void collect(const PrefillChunk& chunk, std::map<RequestId, Read>& reads) {
    PrefillRank& last = *ranks_.back();
    for (const PrefillRows& part : chunk.parts) {
      if (!part.finishes()) continue;
      Read& read = reads[part.id];
      for (int64_t b = 0; b < last.blocks_ready(part.id); ++b) {
        read.blocks.push_back(copy_of(last.block(part.id, b)));
      }
      read.state = bytes_of(*last.take_handoff(part.id));
    }
  }

  EngineOptions options_;
  std::vector<std::unique_ptr<PrefillRank>> ranks_;
  std::vector<std::deque<Waiting>> queues_;
  std::deque<PrefillChunk> done_;
};

/// Of tests/golden/manifest.json, and of demo/prompts.json.
std::vector<Tokens> golden_prompts(const std::string& file) {
  std::vector<Tokens> prompts;
  const auto document = testing::read_json(testing::golden_path(file));
  for (const auto& prompt : document.is_array() ? document : document["prompts"]) {
    prompts.push_back((prompt.is_object() ? prompt["ids"] : prompt).get<Tokens>());
  }
  return prompts;
}

Tokens random_prompt(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens{0};
  while (tokens.size() < count) tokens.push_back(static_cast<TokenId>(random() % 1200));
  return tokens;
}

struct Checkpoint {
  const char* name;
  std::string directory;
  std::string prompts;
  Model (*model)();
};

class EveryCut : public ::testing::TestWithParam<Checkpoint> {};

TEST_P(EveryCut, GoldenPromptsGiveTheSameBytes) {
  const Model whole = GetParam().model();
  std::vector<Tokens> prompts = golden_prompts(GetParam().prompts);
  // A second of the longest ones shows nothing new.
  std::erase_if(prompts, [](const Tokens& prompt) { return prompt.size() > 750; });
  ASSERT_GE(prompts.size(), 9U);
  EngineOptions options = options_of(100);
  options.max_sequences = static_cast<int32_t>(prompts.size());
  const auto expected = read_whole(whole, options, prompts);
  ASSERT_EQ(expected.size(), prompts.size());
  const LayerId boundary = whole->plan.boundary;
  std::vector<std::vector<LayerId>> partitions;
  for (LayerId cut = 1; cut < boundary; ++cut) partitions.push_back({0, cut, boundary});
  partitions.push_back({0, 1, 3, boundary});
  partitions.push_back({0, 1, 2, 3, 4, 5, boundary});
  for (const auto& cuts : partitions) {
    SCOPED_TRACE(std::to_string(cuts[1]) + " of " + std::to_string(cuts.size() - 1));
    Pipeline pipeline(GetParam().directory, cuts, options);
    const auto got = pipeline.read(prompts, 3);
    for (const auto& [id, read] : expected) {
      ASSERT_TRUE(got.contains(id)) << id.value;
      EXPECT_FALSE(read.blocks.empty());
      EXPECT_TRUE(got.at(id) == read) << "prompt of " << prompts[id.value - 1].size() << " tokens";
    }
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      EXPECT_EQ(pipeline.rank(i).free_blocks(), pipeline.rank(i).total_blocks());
      EXPECT_TRUE(pipeline.rank(i).prompts().empty());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, EveryCut,
                         ::testing::Values(Checkpoint{"mini", testing::mini_path(), "manifest.json",
                                                      testing::mini_model},
                                           Checkpoint{"demo", testing::demo_path(),
                                                      "demo/prompts.json", testing::demo_model}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(PrefillPipeline, ChunksOfAnySizeAndReplayOfAnyKind) {
  const Model whole = testing::mini_model();
  const int64_t window = whole->config.sliding_window;
  std::vector<Tokens> prompts;
  for (const int64_t length : {int64_t{1}, window - 1, 2 * window, 5 * window + 1}) {
    prompts.push_back(random_prompt(static_cast<size_t>(length), static_cast<uint32_t>(length)));
  }
  for (const int64_t chunk : {int64_t{1}, int64_t{7}, window, 3 * window + 1}) {
    for (const ReplayMode mode : {ReplayMode::bounded, ReplayMode::exact}) {
      SCOPED_TRACE(chunk);
      const EngineOptions options = options_of(chunk, mode);
      const auto expected = read_whole(whole, options, prompts);
      Pipeline pipeline(testing::mini_path(), {0, 3, whole->plan.boundary}, options);
      EXPECT_TRUE(pipeline.read(prompts, 4) == expected);
    }
  }
}

TEST(PrefillPipeline, ARankHoldsItsLayersAlone) {
  Runtime runtime{EngineOptions{}};
  const auto load = [&](model::LayerRange part) {
    return *load_model(testing::mini_path(), model::Role::encoder, runtime.context(), {}, part);
  };
  const Model whole = *load_model(testing::mini_path(), model::Role::encoder, runtime.context());
  const LayerId boundary = whole->plan.boundary;
  const Model first = load({0, 2}), middle = load({2, 5}), last = load({5, boundary});
  for (const Model& part : {first, middle, last}) {
    for (size_t i = 0; i < part->layers.size(); ++i) {
      const auto layer = static_cast<LayerId>(i);
      const bool projection = layer == boundary && part == last;
      EXPECT_EQ(part->layers[i] != nullptr, part->range.contains(layer) || projection) << i;
    }
    EXPECT_EQ(part->embed.buffer.bytes() > 0, part == first);
  }
  EXPECT_EQ(first->checkpoint.bytes + middle->checkpoint.bytes + last->checkpoint.bytes,
            whole->checkpoint.bytes);
  EXPECT_EQ(first->checkpoint.tensor_count + middle->checkpoint.tensor_count +
                last->checkpoint.tensor_count,
            whole->checkpoint.tensor_count);

  // Half of it is no engine.
  EXPECT_FALSE(
      PrefillEngine::create(first, local_engram_source(first), options_of(10)).has_value());
  EXPECT_FALSE(PrefillEngine::create(last, local_engram_source(last), options_of(10)).has_value());
  for (const model::LayerRange bad :
       {model::LayerRange{0, 0}, model::LayerRange{3, 2}, model::LayerRange{-1, 2},
        model::LayerRange{2, boundary + 1}}) {
    const auto refused =
        load_model(testing::mini_path(), model::Role::encoder, runtime.context(), {}, bad);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, Errc::invalid_argument);
    EXPECT_NE(refused.error().context.find("role encoder has layers 0-5"), std::string::npos)
        << refused.error().context;
  }
}

TEST(PrefillPipeline, RowsThatDoNotFollowAreRefused) {
  const EngineOptions options = options_of(20);
  Pipeline pipeline(testing::mini_path(), {0, 3, testing::mini_model()->plan.boundary}, options);
  PrefillRank& first = pipeline.rank(0);
  PrefillRank& second = pipeline.rank(1);
  PrefillQueue queue(first.model().config);
  queue.add({RequestId{1}, random_prompt(50, 1), {}});
  const PrefillQueue::Next one = queue.next(20);
  const PrefillQueue::Next two = queue.next(20);
  Bytes out(static_cast<size_t>(first.max_out_bytes()));
  const auto error_of = [](const Result<int64_t>& result) {
    return result ? std::string("none") : result.error().context;
  };
  EXPECT_NE(error_of(first.run(two.chunk, {}, {}, out)).find("start: expected 0, got 20"),
            std::string::npos);
  const auto bytes = first.run(one.chunk, {}, {}, out);
  ASSERT_TRUE(bytes.has_value());
  out.resize(static_cast<size_t>(*bytes));
  EXPECT_NE(error_of(second.run(one.chunk, {}, std::span(out).first(out.size() - 1), {}))
                .find("bytes expected of this step"),
            std::string::npos);
  second.release(RequestId{1});
  PrefillChunk other = one.chunk;
  other.parts[0].tokens[3] = 1237;  // of 1237 ids
  EXPECT_NE(error_of(second.run(other, {}, out, {})).find("outside the vocabulary"),
            std::string::npos);
  other = one.chunk;
  other.parts.push_back(other.parts[0]);
  EXPECT_NE(error_of(second.run(other, {}, out, {})).find("parts in one chunk"), std::string::npos);
  other = one.chunk;
  other.parts[0].history.push_back(1);
  EXPECT_NE(error_of(second.run(other, {}, out, {})).find("history"), std::string::npos);
  other = one.chunk;
  other.parts[0].length = 10;
  EXPECT_NE(error_of(second.run(other, {}, out, {})).find("rows: expected 10, got 20"),
            std::string::npos);
  EXPECT_TRUE(second.run(one.chunk, {}, out, {}).has_value());
}

}  // namespace
}  // namespace cedar::engine
