// All layers cut into ranges for writing: every cut samples what one engine samples, to the bit of the log-probabilities,
// with groups of sequences under way at the same time.

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

#include "engine/decode_engine.h"
#include "engine/decode_rank.h"
#include "engine/prefill_engine.h"
#include "engine/request_checks.h"
#include "engine/writing.h"
#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

using Tokens = std::vector<TokenId>;
using Bytes = std::vector<std::byte>;
using Model = std::shared_ptr<const LoadedModel>;

struct Read {
  std::vector<Bytes> blocks;
  Bytes state;
};

struct Answer {
  Tokens tokens;
  std::vector<float> logprobs;
  FinishReason finish = FinishReason::none;
  friend bool operator==(const Answer&, const Answer&) = default;
};
using Answers = std::map<RequestId, Answer>;

EngineOptions options_of(ReplayMode mode = ReplayMode::bounded) {
  EngineOptions options = testing::test_options();
  options.prefill_chunk_tokens = 50;
  options.max_sequences = 16;
  options.replay = mode;
  return options;
}

DecodeRequest request_of(RequestId id, Tokens prompt, int64_t tokens) {
  DecodeRequest request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_new_tokens = tokens;
  // Sampling with penalties needs the output so far.
  request.sampling.temperature = id.value % 2 == 0 ? 0.0F : 0.8F;
  request.sampling.frequency_penalty = 0.5F;
  request.sampling.seed = id.value;
  request.sampling.logprobs = 0;
  request.ignore_eos = true;
  return request;
}

Read read_prompt(const Model& model, const EngineOptions& options, const Tokens& prompt) {
  const auto engine = std::move(*PrefillEngine::create(model, local_engram_source(model), options));
  const RequestId id{1};
  EXPECT_TRUE(engine->submit({id, prompt, {}}).has_value());
  int64_t ready = 0;
  while (!engine->idle()) {
    const auto events = engine->step();
    EXPECT_TRUE(events.has_value());
    ready = events->back().blocks_ready;
  }
  Read read;
  for (int64_t i = 0; i < ready; ++i) {
    const auto bytes = engine->block(id, i);
    read.blocks.emplace_back(bytes.begin(), bytes.end());
  }
  const auto state = engine->take_handoff(id);
  read.state.resize(static_cast<size_t>(serialised_bytes(*state)));
  serialise(*state, read.state);
  return read;
}

void take(Answers& answers, const TokenEvent& event) {
  Answer& answer = answers[event.id];
  EXPECT_FALSE(event.error) << event.error->message();
  EXPECT_EQ(event.index, static_cast<int64_t>(answer.tokens.size()));
  answer.tokens.push_back(event.token.token);
  answer.logprobs.push_back(event.token.logprob.value_or(1));
  answer.finish = event.finish;
}

Answers write_whole(const Model& model, const EngineOptions& options,
                    const std::vector<DecodeRequest>& requests, const std::vector<Read>& reads) {
  const auto engine = std::move(*DecodeEngine::create(model, local_engram_source(model), options));
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_TRUE(engine->reserve(requests[i]).has_value());
    for (size_t b = 0; b < reads[i].blocks.size(); ++b) {
      EXPECT_TRUE(engine->import_block(requests[i].id, static_cast<int64_t>(b), reads[i].blocks[b])
                      .has_value());
    }
    EXPECT_TRUE(engine->start(requests[i].id, *parse_handoff(reads[i].state)).has_value());
  }
  Answers answers;
  while (!engine->idle()) {
    const auto events = engine->step();
    EXPECT_TRUE(events.has_value()) << events.error().message();
    if (!events) break;
    for (const TokenEvent& event : *events) take(answers, event);
  }
  return answers;
}

/// Ranks in one process, with a queue of steps in front of each.
class Pipeline {
 public:
  Pipeline(const std::string& directory, const std::vector<LayerId>& cuts,
           const EngineOptions& options) {
    Runtime runtime{EngineOptions{}};
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      auto model = load_model(directory, model::Role::decoder, runtime.context(), {},
                              model::LayerRange{cuts[i], cuts[i + 1]});
      EXPECT_TRUE(model.has_value()) << model.error().message();
      auto rank = DecodeRank::create(*model, local_engram_source(*model), options);
      EXPECT_TRUE(rank.has_value()) << rank.error().message();
      ranks_.push_back(std::move(*rank));
    }
    queues_.resize(ranks_.size());
  }

  Answers write(const std::vector<DecodeRequest>& requests, const std::vector<Read>& reads,
                size_t groups) {
    const LoadedModel& model = ranks_[0]->model();
    for (size_t i = 0; i < requests.size(); ++i) {
      const RequestId id = requests[i].id;
      writings_.emplace(id, *begin_writing(model.config, ranks_[0]->options(), requests[i]));
      const auto read = static_cast<Position>(requests[i].prompt.size());
      next_replay_[id] = -1;
      for (const auto& rank : ranks_) {
        EXPECT_TRUE(rank->open(id, read, read + requests[i].max_new_tokens).has_value());
        for (size_t b = 0; b < reads[i].blocks.size(); ++b) {
          EXPECT_TRUE(
              rank->import_block(id, static_cast<int64_t>(b), reads[i].blocks[b]).has_value());
        }
        Handoff handoff = *parse_handoff(reads[i].state);
        next_replay_[id] = read - handoff.boundary_rows;
        EXPECT_TRUE(rank->start(id, std::move(handoff)).has_value());
      }
    }
    Answers answers;
    std::vector<bool> under_way(groups);
    while (!writings_.empty()) {
      for (size_t group = 0; group < groups; ++group) {
        if (under_way[group]) continue;
        DecodeChunk chunk = next_chunk(group, groups);
        if (chunk.parts.empty()) continue;
        under_way[group] = true;
        run(0, group, std::move(chunk), {});
      }
      // The last rank that has something to do, so that steps pile up in front of the others.
      size_t i = ranks_.size() - 1;
      while (i > 0 && queues_[i].empty()) --i;
      if (i > 0) {
        Waiting waiting = std::move(queues_[i].front());
        queues_[i].pop_front();
        run(i, waiting.group, std::move(waiting.chunk), waiting.bytes);
      }
      for (auto& [group, events] : done_) {
        under_way[group] = false;
        for (const TokenEvent& event : events) {
          take(answers, event);
          if (event.finish == FinishReason::none) continue;
          writings_.erase(event.id);
          for (const auto& rank : ranks_) rank->release(event.id);
        }
      }
      done_.clear();
      if (::testing::Test::HasFailure()) break;
    }
    return answers;
  }

  DecodeRank& rank(size_t i) { return *ranks_[i]; }
  size_t size() const { return ranks_.size(); }

 private:
  struct Waiting {
    size_t group;
    DecodeChunk chunk;
    Bytes bytes;
  };

  DecodeChunk next_chunk(size_t group, size_t groups) {
    DecodeChunk chunk;
    const LoadedModel& model = ranks_[0]->model();
    const auto add = [&](RequestId id, Position start, int64_t rows, bool replay) {
      const Writing& writing = writings_.at(id);
      BatchSequence rows_of = make_sequence(model.config, writing.tokens, start, rows);
      chunk.parts.push_back({id, start, replay, replay && start + rows == writing.read_length(),
                             rows_of.tokens, rows_of.history});
    };
    for (const bool replay : {false, true}) {
      int64_t budget = 50;
      for (auto& [id, writing] : writings_) {
        if (id.value % groups != group) continue;
        Position& next = next_replay_.at(id);
        if (replay && next < writing.read_length()) {
          const int64_t rows = std::min<int64_t>(budget, writing.read_length() - next);
          if (rows == 0) continue;
          add(id, next, rows, true);
          next += rows;
          budget -= rows;
        } else if (!replay && next == writing.read_length() && !writing.output().empty()) {
          add(id, static_cast<Position>(writing.tokens.size()) - 1, 1, false);
        }
      }
    }
    return chunk;
  }

  void run(size_t i, size_t group, DecodeChunk chunk, const Bytes& in) {
    DecodeRank& rank = *ranks_[i];
    EXPECT_LE(static_cast<int64_t>(in.size()), rank.max_in_bytes());
    Bytes out(static_cast<size_t>(rank.max_out_bytes()));
    const auto bytes = rank.run(chunk, in, out);
    ASSERT_TRUE(bytes.has_value()) << bytes.error().message();
    if (!rank.last()) {
      out.resize(static_cast<size_t>(*bytes));
      queues_[i + 1].push_back({group, std::move(chunk), std::move(out)});
      return;
    }
    std::vector<Writing*> sequences;
    for (const RequestId id : rank.decided()) sequences.push_back(&writings_.at(id));
    if (sequences.empty()) return done_.emplace_back(group, std::vector<TokenEvent>()), void();
    auto written = write_tokens(rank.context(), rank.model().config, rank.logits(), sequences);
    ASSERT_TRUE(written.has_value()) << written.error().message();
    done_.emplace_back(group, std::move(written->events));
  }

  std::vector<std::unique_ptr<DecodeRank>> ranks_;
  std::vector<std::deque<Waiting>> queues_;
  std::map<RequestId, Writing> writings_;
  std::map<RequestId, Position> next_replay_;
  std::vector<std::pair<size_t, std::vector<TokenEvent>>> done_;
};

Tokens random_prompt(size_t count) {
  std::mt19937 random(static_cast<uint32_t>(count));
  Tokens tokens{0};
  while (tokens.size() < count) tokens.push_back(static_cast<TokenId>(random() % 1200));
  return tokens;
}

std::vector<std::vector<LayerId>> every_cut(const LoadedModel& model) {
  const auto end = static_cast<LayerId>(model.plan.layers.size());
  std::vector<std::vector<LayerId>> partitions;
  for (LayerId cut = 1; cut < end; ++cut) partitions.push_back({0, cut, end});
  partitions.push_back({0, 2, model.plan.boundary, end - 1, end});
  partitions.push_back({0, 3, model.plan.boundary + 2, end});
  std::vector<LayerId> each;
  for (LayerId layer = 0; layer <= end; ++layer) each.push_back(layer);
  partitions.push_back(each);
  return partitions;
}

void expect_every_cut(const Model& model, const std::string& directory,
                      const std::vector<Tokens>& prompts, int64_t tokens, ReplayMode mode) {
  const EngineOptions options = options_of(mode);
  std::vector<DecodeRequest> requests;
  std::vector<Read> reads;
  for (size_t i = 0; i < prompts.size(); ++i) {
    requests.push_back(request_of(RequestId{i + 1}, prompts[i], tokens + static_cast<int64_t>(i)));
    reads.push_back(read_prompt(model, options, prompts[i]));
  }
  const Answers expected = write_whole(model, options, requests, reads);
  ASSERT_EQ(expected.size(), prompts.size());
  for (const auto& cuts : every_cut(*model)) {
    SCOPED_TRACE(std::to_string(cuts[1]) + " first of " + std::to_string(cuts.size() - 1));
    Pipeline pipeline(directory, cuts, options);
    EXPECT_TRUE(pipeline.write(requests, reads, 2) == expected);
    for (size_t i = 0; i < pipeline.size(); ++i) {
      EXPECT_EQ(pipeline.rank(i).free_blocks(), pipeline.rank(i).total_blocks());
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(DecodePipeline, EveryCutOfMiniWritesWhatOneEngineWrites) {
  std::vector<Tokens> prompts;
  for (const auto& prompt : testing::read_json(testing::golden_path("manifest.json"))["prompts"]) {
    prompts.push_back(prompt.get<Tokens>());
  }
  for (const size_t length : {35U, 71U, 72U, 101U}) prompts.push_back(random_prompt(length));
  expect_every_cut(testing::mini_model(), testing::mini_path(), prompts, 12, ReplayMode::bounded);
}

TEST(DecodePipeline, ExactReplayToo) {
  expect_every_cut(testing::mini_model(), testing::mini_path(),
                   {random_prompt(150), random_prompt(33)}, 6, ReplayMode::exact);
}

TEST(DecodePipeline, EveryCutOfDemoWritesWhatOneEngineWrites) {
  std::vector<Tokens> prompts;
  for (const auto& prompt : testing::read_json(testing::golden_path("demo/prompts.json"))) {
    if (prompt["ids"].size() < 400) prompts.push_back(prompt["ids"].get<Tokens>());
  }
  prompts.resize(8);
  expect_every_cut(testing::demo_model(), testing::demo_path(), prompts, 8, ReplayMode::bounded);
}

TEST(DecodePipeline, RowsThatDoNotFollowAreRefused) {
  const Model model = testing::mini_model();
  const EngineOptions options = options_of();
  const Read read = read_prompt(model, options, random_prompt(40));
  Pipeline pipeline(testing::mini_path(), {0, 8, 11}, options);
  DecodeRank& first = pipeline.rank(0);
  Bytes out(static_cast<size_t>(first.max_out_bytes()));
  const auto error_of = [&](DecodeChunk chunk) {
    const auto result = first.run(chunk, {}, out);
    return result ? std::string("none") : result.error().context;
  };
  const auto rows = [](Position start, size_t count, bool replay) {
    DecodeRows one{RequestId{1},     start,
                   replay,           replay && start + static_cast<Position>(count) == 40,
                   Tokens(count, 5), Tokens(2, 7)};
    return DecodeChunk{{one}};
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(error_of({}), "a step without rows");
  has(error_of(rows(4, 36, true)), "started: expected 1, got 0");
  EXPECT_FALSE(first.open(RequestId{1}, 40, 39).has_value());
  EXPECT_FALSE(first.open(RequestId{1}, 0, 39).has_value());
  ASSERT_TRUE(first.open(RequestId{1}, 40, 42).has_value());
  EXPECT_FALSE(first.start(RequestId{1}, *parse_handoff(read.state)).has_value());  // no blocks
  for (size_t b = 0; b < read.blocks.size(); ++b) {
    ASSERT_TRUE(
        first.import_block(RequestId{1}, static_cast<int64_t>(b), read.blocks[b]).has_value());
  }
  EXPECT_FALSE(first.import_block(RequestId{1}, 99, read.blocks[0]).has_value());
  EXPECT_FALSE(first.import_block(RequestId{2}, 0, read.blocks[0]).has_value());
  ASSERT_TRUE(first.start(RequestId{1}, *parse_handoff(read.state)).has_value());
  has(error_of(rows(5, 35, true)), "start: expected 4, got 5");
  has(error_of(rows(4, 37, true)), "rows: expected 36, got 37");
  has(error_of(rows(40, 1, false)), "replay: expected 1, got 0");
  EXPECT_EQ(error_of(rows(4, 36, true)), "none");
  has(error_of(rows(41, 1, false)), "start: expected 40, got 41");
  has(error_of(rows(40, 2, false)), "rows: expected 1, got 2");
  EXPECT_EQ(error_of(rows(40, 1, false)), "none");
  EXPECT_EQ(error_of(rows(41, 1, false)), "none");
  has(error_of(rows(42, 1, false)), "rows: expected 0, got 1");  // no room for more
}

}  // namespace
}  // namespace cedar::engine
