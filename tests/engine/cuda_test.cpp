// The engine on a GPU against the engine on the CPU. Skipped where there is none.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/device_memory.h"
#include "engine/engine.h"
#include "engine/layer_launches.h"
#include "engine/sequence_runner.h"
#include "tests/support/test_model.h"

namespace cedar::engine {
namespace {

constexpr Device kCuda{DeviceKind::cuda, 0};
using Tokens = std::vector<TokenId>;

EngineOptions options_on(Device device) {
  EngineOptions options = testing::test_options();
  options.device = device;
  return options;
}

std::shared_ptr<const LoadedModel> load(const std::string& directory, Device device) {
  Runtime runtime(options_on(device));
  auto model = load_model(directory, model::Role::all, runtime.context());
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message());
  return model ? *model : nullptr;
}

struct Answer {
  Tokens ids;
  std::string error;
};

/// Greedy answers of all prompts, submitted at once.
std::vector<Answer> answers(const std::shared_ptr<const LoadedModel>& model, EngineOptions options,
                            const std::vector<Tokens>& prompts, int64_t count) {
  std::vector<Answer> out(prompts.size());
  auto engine = Engine::create(model, options);
  EXPECT_TRUE(engine.has_value()) << (engine ? "" : engine.error().message());
  if (!engine) return out;
  for (size_t i = 0; i < prompts.size(); ++i) {
    DecodeRequest request;
    request.id = RequestId(i + 1);
    request.prompt = prompts[i];
    request.max_new_tokens = count;
    request.sampling.temperature = 0;
    const Status status = (*engine)->submit(request, {}, [&out, i](const TokenEvent& event) {
      if (event.error) {
        out[i].error = event.error->message();
      } else {
        out[i].ids.push_back(event.token.token);
      }
    });
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message());
  }
  for (int step = 0; step < 5000 && !(*engine)->idle(); ++step) {
    const Status status = (*engine)->step();
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message());
    if (!status) break;
  }
  return out;
}

Tokens random_prompt(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Tokens tokens{0};
  while (tokens.size() < count) tokens.push_back(static_cast<TokenId>(random() % 1200));
  return tokens;
}

/// The ids before the first whose logit was recorded as less than 0.5 above the next best one's: sums in another order may
/// choose that one, and all that follows hangs on it.
Tokens clear_answer(const Tokens& ids, const nlohmann::json& recorded) {
  size_t count = 0;
  for (const auto& gap : recorded.at("gaps")) {
    if (gap.get<double>() < 0.5 || count == ids.size()) break;
    ++count;
  }
  return {ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count)};
}

class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "this machine lacks a CUDA device";
  }
};

TEST_F(OnCuda, ATrainedModelAnswersAsOnTheCpu) {
  const auto recorded = testing::read_json(testing::golden_path("demo/prompts.json"));
  std::vector<Tokens> prompts;
  for (const auto& prompt : recorded) prompts.push_back(prompt["ids"].get<Tokens>());
  const auto model = load(testing::demo_path(), kCuda);
  ASSERT_NE(model, nullptr);
  const auto found = answers(model, options_on(kCuda), prompts, 24);
  const auto expected = answers(testing::demo_model(), options_on(Device{}), prompts, 24);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(found[i].error, "") << i;
    EXPECT_EQ(clear_answer(found[i].ids, recorded[i]), clear_answer(expected[i].ids, recorded[i]))
        << recorded[i]["name"];
  }
}

TEST_F(OnCuda, PlainKernelsAnswerAlike) {
  const auto recorded = testing::read_json(testing::golden_path("demo/prompts.json"));
  std::vector<Tokens> prompts;
  for (const auto& prompt : recorded) prompts.push_back(prompt["ids"].get<Tokens>());
  const auto model = load(testing::demo_path(), kCuda);
  ASSERT_NE(model, nullptr);
  EngineOptions plain = options_on(kCuda);
  plain.cuda_level = kernels::CudaLevel::plain;
  const auto found = answers(model, plain, prompts, 24);
  const auto expected = answers(model, options_on(kCuda), prompts, 24);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(found[i].error, "") << i;
    EXPECT_EQ(clear_answer(found[i].ids, recorded[i]), clear_answer(expected[i].ids, recorded[i]))
        << recorded[i]["name"];
  }
}

TEST_F(OnCuda, LogitsAreCloseAndNeighboursDoNotChangeThem) {
  const auto model = load(testing::mini_path(), kCuda);
  ASSERT_NE(model, nullptr);
  auto on_gpu = SequenceRunner::create(model, options_on(kCuda));
  auto on_cpu = SequenceRunner::create(testing::mini_model(), options_on(Device{}));
  ASSERT_TRUE(on_gpu.has_value()) << on_gpu.error().message();
  ASSERT_TRUE(on_cpu.has_value()) << on_cpu.error().message();
  const std::vector<size_t> lengths = {1, 2, 37, 64, 120};
  std::vector<SequenceRunner::Chunk> together;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto slot = (*on_gpu)->open(static_cast<int64_t>(lengths[i]));
    ASSERT_TRUE(slot.has_value());
    together.push_back({*slot, random_prompt(lengths[i], static_cast<uint32_t>(i))});
  }
  const auto batched = (*on_gpu)->run(together);
  ASSERT_TRUE(batched.has_value()) << batched.error().message();
  for (const auto& chunk : together) (*on_gpu)->close(chunk.slot);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto single = [&](SequenceRunner& runner) {
      const auto slot = runner.open(static_cast<int64_t>(lengths[i]));
      EXPECT_TRUE(slot.has_value());
      auto output = runner.run({{*slot, together[i].tokens}});
      EXPECT_TRUE(output.has_value()) << (output ? "" : output.error().message());
      runner.close(*slot);
      return output ? output->front().logits.back() : std::vector<float>();
    };
    const std::vector<float> alone = single(**on_gpu), cpu = single(**on_cpu);
    EXPECT_EQ((*batched)[i].logits.back(), alone) << lengths[i];
    double difference = 0, norm = 0;
    for (size_t c = 0; c < cpu.size(); ++c) {
      const double d = static_cast<double>(alone[c]) - static_cast<double>(cpu[c]);
      difference += d * d;
      norm += static_cast<double>(cpu[c]) * static_cast<double>(cpu[c]);
    }
    // A random model: one expert or row chosen differently at a near-tie is worth this much.
    EXPECT_LT(std::sqrt(difference / norm), 0.1) << lengths[i];
  }
}

TEST_F(OnCuda, ChunksDoNotChangeAnswers) {
  const auto model = load(testing::mini_path(), kCuda);
  ASSERT_NE(model, nullptr);
  const std::vector<Tokens> prompts = {random_prompt(150, 7), random_prompt(33, 8)};
  EngineOptions small = options_on(kCuda);
  small.prefill_chunk_tokens = 16;
  const auto whole = answers(model, options_on(kCuda), prompts, 6);
  const auto chunked = answers(model, small, prompts, 6);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(whole[i].error, "");
    EXPECT_EQ(whole[i].ids, chunked[i].ids) << i;
  }
}

/// Greedy answers straight from the two engines, and how many steps were replays.
struct Decoded {
  std::vector<Tokens> ids;
  int64_t replays = 0, steps = 0;
};

Decoded decode(const std::shared_ptr<const LoadedModel>& model, EngineOptions options,
               const std::vector<Tokens>& prompts, bool graphs) {
  Decoded out;
  out.ids.resize(prompts.size());
  options.decode_graphs = graphs;
  options.max_sequences = static_cast<int32_t>(prompts.size());
  const auto engram = local_engram_source(model);
  auto prefill = PrefillEngine::create(model, engram, options);
  auto engine = DecodeEngine::create(model, engram, options);
  EXPECT_TRUE(prefill.has_value() && engine.has_value());
  if (!prefill || !engine) return out;
  for (size_t i = 0; i < prompts.size(); ++i) {
    DecodeRequest request;
    request.id = RequestId(i);
    request.prompt = prompts[i];
    // Sequences end one after the other: steps of many shapes.
    request.max_new_tokens = 20 + 7 * static_cast<int64_t>(i);
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.8F;
    request.sampling.seed = i;
    request.ignore_eos = true;
    EXPECT_TRUE((*prefill)->submit({request.id, request.prompt, {}}).has_value());
    EXPECT_TRUE((*engine)->reserve(std::move(request)).has_value());
  }
  while (!(*prefill)->idle()) {
    const auto events = (*prefill)->step();
    EXPECT_TRUE(events.has_value()) << (events ? "" : events.error().message());
    if (!events) return out;
    for (const PrefillEvent& event : *events) {
      if (!event.finished) continue;
      for (int64_t b = 0; b < event.blocks_ready; ++b) {
        EXPECT_TRUE((*engine)->import_block(event.id, b, (*prefill)->block(event.id, b)));
      }
      auto handoff = (*prefill)->take_handoff(event.id);
      EXPECT_TRUE(handoff.has_value());
      EXPECT_TRUE((*engine)->start(event.id, std::move(*handoff)).has_value());
      (*prefill)->release(event.id);
    }
  }
  while (!(*engine)->idle()) {
    const auto events = (*engine)->step();
    EXPECT_TRUE(events.has_value()) << (events ? "" : events.error().message());
    if (!events) return out;
    for (const TokenEvent& event : *events) {
      EXPECT_FALSE(event.error.has_value()) << (event.error ? event.error->message() : "");
      out.ids[event.id.value].push_back(event.token.token);
    }
    ++out.steps;
    out.replays += (*engine)->last_step().replayed ? 1 : 0;
  }
  return out;
}

TEST_F(OnCuda, RecordedStepsGiveTheBitsOfLaunches) {
  for (const std::string& directory : {testing::mini_path(), testing::demo_path()}) {
    const auto model = load(directory, kCuda);
    ASSERT_NE(model, nullptr);
    std::vector<Tokens> prompts;
    for (uint32_t i = 0; i < 7; ++i) prompts.push_back(random_prompt(3 + 29 * i, i));
    const Decoded launched = decode(model, options_on(kCuda), prompts, false);
    const Decoded recorded = decode(model, options_on(kCuda), prompts, true);
    EXPECT_EQ(launched.replays, 0);
    EXPECT_GT(recorded.replays, recorded.steps / 2) << recorded.steps;
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(recorded.ids[i], launched.ids[i]) << directory << " " << i;
    }
  }
}

TEST_F(OnCuda, LayersAreFewLaunches) {
  // Small shapes take a launch more here and there: shared heads' groups of wo_a are products of their own, and
  // hyper-connections of odd widths have no fused kernels. `cedar bench engine` counts the release's shapes.
  const auto model = load(testing::demo_path(), kCuda);
  ASSERT_NE(model, nullptr);
  for (const model::LayerPlan& plan : model->plan.layers) {
    if (plan.mode != model::LayerMode::reuse || plan.has_engram) continue;
    const auto decode = count_layer_launches(model, options_on(kCuda), plan.id, 4, true);
    ASSERT_TRUE(decode.has_value()) << decode.error().message();
    EXPECT_LE(*decode, 20) << plan.id;
    EXPECT_GE(*decode, 8) << plan.id;
  }
}

TEST(Devices, EngineAndWeightsMustAgree) {
  EngineOptions options = testing::test_options();
  options.device = Device{DeviceKind::cuda, 7};
  const auto engine = Engine::create(testing::mini_model(), options);
  ASSERT_FALSE(engine.has_value());
  EXPECT_NE(engine.error().context.find("cuda:7"), std::string::npos) << engine.error().context;
}

TEST(Devices, LoadingSaysWhatIsMissing) {
  Runtime runtime(options_on(Device{DeviceKind::cuda, 63}));
  const auto model = load_model(testing::mini_path(), model::Role::all, runtime.context());
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, Errc::unsupported);
  EXPECT_NE(model.error().context.find("cuda:63"), std::string::npos) << model.error().context;
}

}  // namespace
}  // namespace cedar::engine
