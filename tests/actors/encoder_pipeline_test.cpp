// An encoder spread over several nodes: what decoders get of it is what one encoder gives, and every rank's pools return to
// their level, whatever is cancelled or lost.

#include <condition_variable>
#include <set>

#include "actors/encoder_face.h"
#include "actors/encoder_part.h"
#include "actors/service_directory.h"
#include "engine/engine.h"
#include "tests/actors/handoff_fixture.h"
#include "tests/support/test_model.h"
#include "transport/calls.h"

namespace cedar::actors {
namespace {

using namespace std::chrono_literals;
using Tokens = std::vector<TokenId>;

/// Table rows that can be kept waiting, or be out of reach.
class GatedEngram final : public engine::EngramSource {
 public:
  explicit GatedEngram(const std::shared_ptr<const engine::LoadedModel>& model)
      : local_(engine::local_engram_source(model)) {}
  Status fetch(LayerId layer, std::span<const int64_t> rows, uint8_t* out) override {
    std::unique_lock lock(mutex_);
    ahead_ += announced_.count({rows.begin(), rows.end()}) > 0 ? 1 : 0;
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
    if (broken_) return make_error(Errc::unavailable, "shard 0 of the test is gone");
    return local_->fetch(layer, rows, out);
  }
  void set(bool open, bool broken = false) {
    std::lock_guard lock(mutex_);
    open_ = open;
    broken_ = broken;
    changed_.notify_all();
  }
  void prefetch(LayerId, std::span<const int64_t> rows) override {
    std::lock_guard lock(mutex_);
    announced_.emplace(rows.begin(), rows.end());
  }
  bool wants_prefetch() const override { return true; }
  /// Fetches that were announced.
  int ahead() {
    std::lock_guard lock(mutex_);
    return ahead_;
  }
  bool somebody_waits() {
    std::lock_guard lock(mutex_);
    return waiting_ > 0;
  }

 private:
  std::shared_ptr<engine::EngramSource> local_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true, broken_ = false;
  int waiting_ = 0, ahead_ = 0;
  std::set<std::vector<int64_t>> announced_;
};

class EncoderPipelineTest : public HandoffFixture {
 protected:
  struct Rank {
    Node* node = nullptr;
    std::unique_ptr<transport::Calls> calls;
    std::shared_ptr<GatedEngram> engram;
    std::unique_ptr<EncoderPart> part;  // null at the face
  };

  static engine::EngineOptions options(int64_t blocks = 64) {
    engine::EngineOptions options = testing::test_options();
    options.prefill_chunk_tokens = 40;
    options.kv_pool_blocks = blocks;
    return options;
  }
  PipelinePlace place(size_t rank) const {
    PipelinePlace place;
    place.name = "reader";
    for (size_t i = 0; i + 1 < cuts_.size(); ++i) place.ranks.push_back({cuts_[i], cuts_[i + 1]});
    place.rank = rank;
    place.depth = 3;
    return place;
  }
  static std::shared_ptr<const engine::LoadedModel> load(model::LayerRange range) {
    engine::Runtime runtime{engine::EngineOptions{}};
    return *engine::load_model(testing::mini_path(), model::Role::encoder, runtime.context(), {},
                               range);
  }

  void TearDown() override {
    for (const auto& rank : ranks_) rank->calls->shutdown();
    for (const auto& rank : ranks_) rank->part.reset();
    HandoffFixture::TearDown();
  }

  Rank& add_rank(size_t number, uint64_t generation = 1) {
    ranks_.push_back(std::make_unique<Rank>());
    Rank& rank = *ranks_.back();
    rank.calls = std::make_unique<transport::Calls>();
    change_options_ = [&](transport::TransportOptions& data) {
      data.identity.generation = generation;
      rank.calls->install(data);
    };
    rank.node = &add_node();
    change_options_ = {};
    rank.calls->attach(rank.node->transport());
    rank.node->plane.calls = rank.calls.get();
    rank.node->plane.directory = &directory_;
    rank.node->script->blocks = blocks_;
    const PipelinePlace here = place(number);
    const auto model = load(here.ranks[number]);
    rank.engram = std::make_shared<GatedEngram>(model);
    if (number == 0) {
      auto face = make_face_engine(model, rank.engram, options(blocks_));
      EXPECT_TRUE(face.has_value()) << face.error().message();
      rank.node->encoder = EncoderStageActor(system_->spawn<EncoderFace, caf::detached>(
          EncoderFaceSetup{face->make, rank.node->plane, here, rank.node->board, nullptr}));
      EXPECT_TRUE(test::eventually([&] { return rank.node->board->encoder_free_blocks > 0; }));
    } else {
      auto part =
          EncoderPart::start(rank.node->plane, {model, rank.engram, options(blocks_), here});
      EXPECT_TRUE(part.has_value()) << part.error().message();
      rank.part = std::move(*part);
    }
    return rank;
  }
  /// What a gateway would list.
  void list(const std::vector<Rank*>& parts) {
    std::vector<DirectoryEntry> entries;
    for (const Rank* rank : parts) {
      entries.push_back({"part-" + std::to_string(rank->node->plane.endpoint.node),
                         rank->node->plane.endpoint,
                         {rank->part->description()}});
    }
    directory_.update("gateway", std::move(entries));
  }
  /// Face first.
  std::vector<Rank*> add_pipeline(std::vector<LayerId> cuts) {
    cuts_ = std::move(cuts);
    std::vector<Rank*> ranks;
    for (size_t i = 0; i + 1 < cuts_.size(); ++i) ranks.push_back(&add_rank(i));
    list({ranks.begin() + 1, ranks.end()});
    return ranks;
  }
  Node& add_real_encoder() {
    static const auto model = testing::load_for_test(testing::mini_path(), model::Role::encoder);
    Node& node = add_node();
    engine::EngineOptions own = options();
    own.block_memory = node.memory;
    node.script->blocks = own.kv_pool_blocks;
    const auto make = [own]() -> Result<std::unique_ptr<EncoderEngine>> {
      CEDAR_TRY(auto engine,
                engine::PrefillEngine::create(model, engine::local_engram_source(model), own));
      return as_stage_engine(std::move(engine));
    };
    node.encoder = system_->spawn<EncoderStage, caf::detached>(
        EncoderStageSetup{make, node.memory, node.plane, node.board, nullptr});
    EXPECT_TRUE(test::eventually([&] { return node.board->encoder_free_blocks > 0; }));
    return node;
  }
  Node& add_real_decoder() {
    Node& node = add_node();
    node.script->blocks = options().kv_pool_blocks;
    const auto make = []() -> Result<std::unique_ptr<DecoderEngine>> {
      CEDAR_TRY(auto engine, engine::DecodeEngine::create(
                                 testing::mini_model(),
                                 engine::local_engram_source(testing::mini_model()), options()));
      return as_stage_engine(std::move(engine));
    };
    node.decoder = system_->spawn<DecoderStage, caf::detached>(
        DecoderStageSetup{make, node.plane, node.board, {}, nullptr});
    EXPECT_TRUE(test::eventually([&] { return node.board->decoder_free_blocks > 0; }));
    return node;
  }

  static GenerateRequest request_of(Tokens prompt) {
    GenerateRequest request;
    request.decode.prompt = std::move(prompt);
    request.decode.max_new_tokens = 6;
    request.decode.sampling.temperature = 0;
    request.decode.ignore_eos = true;
    return request;
  }
  static GenerateRequest prompt_of(size_t length) {
    std::mt19937 random(static_cast<uint32_t>(length));
    Tokens prompt;
    while (prompt.size() < length) prompt.push_back(static_cast<TokenId>(random() % 1200));
    return request_of(std::move(prompt));
  }
  static Tokens one_process(const GenerateRequest& request) {
    auto engine = engine::Engine::create(testing::mini_model(), options());
    EXPECT_TRUE(engine.has_value());
    Tokens tokens;
    EXPECT_TRUE(
        (*engine)
            ->submit(request.decode, {},
                     [&](const engine::TokenEvent& event) { tokens.push_back(event.token.token); })
            .has_value());
    while (!(*engine)->idle()) EXPECT_TRUE((*engine)->step().has_value());
    return tokens;
  }
  static void expect_one_process(const Sink& sink, const GenerateRequest& request) {
    const auto end = sink->wait_end(60s);
    ASSERT_TRUE(end);
    ASSERT_FALSE(end->error) << end->error->message();
    EXPECT_EQ(sink->tokens(), one_process(request));
  }
  /// Of all ranks that live.
  void expect_ranks_level() {
    expect_level();
    const auto level = [&] {
      for (const auto& rank : ranks_) {
        if (!rank->part || rank->node->faults().cut) continue;
        const EncoderPartLoad load = rank->part->load();
        if (load.prompts != 0 || load.free_blocks != blocks_ || load.rows_in_slots != 0 ||
            load.rows_out_slots != 0 || rank->node->transport().stats().leases_live != 0) {
          return false;
        }
      }
      return true;
    };
    EXPECT_TRUE(test::eventually(level, 20s));
  }

  int64_t blocks_ = 64;
  std::vector<LayerId> cuts_;
  ServiceDirectory directory_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};
INSTANTIATE_TEST_SUITE_P(Backends, EncoderPipelineTest, ::testing::ValuesIn(handoff_backends()),
                         [](const auto& backend) { return backend.param.name; });

TEST_P(EncoderPipelineTest, GoldenAndOtherPromptsWriteWhatOneProcessWrites) {
  const auto ranks = add_pipeline({0, 2, 3, 6});
  Node& decoder = add_real_decoder();
  std::vector<GenerateRequest> requests;
  for (const size_t length : {1, 2, 35, 36, 37, 71, 72, 73, 101, 144}) {
    requests.push_back(prompt_of(length));
  }
  const auto manifest = testing::read_json(testing::golden_path("manifest.json"));
  for (const auto& prompt : manifest.at("prompts")) {
    requests.push_back(request_of(prompt.get<Tokens>()));
  }
  std::vector<Sink> sinks;
  for (const GenerateRequest& request : requests) {
    sinks.push_back(submit(*ranks[0]->node, decoder, request));
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    SCOPED_TRACE(requests[i].decode.prompt.size());
    expect_one_process(sinks[i], requests[i]);
  }
  expect_ranks_level();
}

TEST_P(EncoderPipelineTest, ChunksOfOnePromptAreUnderWayTogether) {
  const auto ranks = add_pipeline({0, 2, 6});
  Node& decoder = add_real_decoder();
  ranks[1]->engram->set(false);
  const auto request = prompt_of(300);
  const auto sink = submit(*ranks[0]->node, decoder, request);
  // The second rank is at its first chunk; the first rank reads on, but no further than it may.
  EXPECT_TRUE(test::eventually([&] { return ranks[1]->engram->somebody_waits(); }));
  EXPECT_TRUE(test::eventually([&] { return ranks[1]->part->load().rows_in_slots == 3; }));
  EXPECT_TRUE(test::eventually(
      [&] { return ranks[0]->node->board->encoder_queued_tokens == 300 - 3 * 40; }));
  ranks[1]->engram->set(true);
  expect_one_process(sink, request);
  expect_ranks_level();
  // Table rows of a chunk are asked for while the one before it is computed: of all but the first chunk by the first rank,
  // of those that waited here by the second.
  EXPECT_EQ(ranks[0]->engram->ahead(), 7);
  EXPECT_GE(ranks[1]->engram->ahead(), 1);
}

TEST_P(EncoderPipelineTest, CancelledPromptsLeaveNothingInAnyRank) {
  const auto ranks = add_pipeline({0, 2, 3, 6});
  Node& decoder = add_real_decoder();
  ranks[2]->engram->set(false);
  std::vector<Sink> sinks;
  for (const size_t length : {300, 301, 40, 5}) {
    sinks.push_back(submit(*ranks[0]->node, decoder, prompt_of(length)));
  }
  EXPECT_TRUE(test::eventually([&] { return ranks[2]->engram->somebody_waits(); }));
  for (size_t i = 0; i < 3; ++i) cancel(i);
  for (size_t i = 0; i < 3; ++i) {
    const auto end = sinks[i]->wait_end(30s);
    ASSERT_TRUE(end);
    EXPECT_EQ(end->reason, engine::FinishReason::cancelled);
  }
  ranks[2]->engram->set(true);
  expect_one_process(sinks[3], prompt_of(5));
  expect_ranks_level();
}

TEST_P(EncoderPipelineTest, AnErrorOfAnyRankIsTheRequestsAndTheNextOneWorks) {
  const auto ranks = add_pipeline({0, 2, 3, 6});
  Node& decoder = add_real_decoder();
  ranks[2]->engram->set(true, true);
  const Error error = error_of(submit(*ranks[0]->node, decoder, prompt_of(100)));
  EXPECT_EQ(error.code, Errc::unavailable);
  expect_ranks_level();
  ranks[2]->engram->set(true, false);
  const auto request = prompt_of(101);
  expect_one_process(submit(*ranks[0]->node, decoder, request), request);
  expect_ranks_level();
}

TEST_P(EncoderPipelineTest, PromptsWaitForRoom) {
  blocks_ = 4;
  const auto ranks = add_pipeline({0, 4, 6});
  Node& decoder = add_real_decoder();
  std::vector<GenerateRequest> requests;
  std::vector<Sink> sinks;
  for (size_t i = 0; i < 6; ++i) {
    requests.push_back(prompt_of(70 + i));  // of two blocks or three
    sinks.push_back(submit(*ranks[0]->node, decoder, requests.back()));
  }
  for (size_t i = 0; i < sinks.size(); ++i) expect_one_process(sinks[i], requests[i]);
  expect_ranks_level();
  EXPECT_EQ(error_of(submit(*ranks[0]->node, decoder, prompt_of(200))).code,
            Errc::context_too_long);
  expect_ranks_level();
}

TEST_P(EncoderPipelineTest, ALostRankCostsNoRequestThatAnotherEncoderCanRead) {
  const auto ranks = add_pipeline({0, 2, 6});
  Node& other = add_real_encoder();
  Node& decoder = add_real_decoder();
  ranks[1]->engram->set(false);
  const auto request = prompt_of(300);
  may_replace_with_encoder(other);
  const auto sink = submit(*ranks[0]->node, decoder, request);
  EXPECT_TRUE(test::eventually([&] { return ranks[1]->engram->somebody_waits(); }));
  ranks[1]->node->faults().cut = true;
  expect_one_process(sink, request);
  EXPECT_EQ(routes_->encoders_replaced, 1);
  ranks[1]->engram->set(true);

  // It comes back as a later life, and the pipeline works again.
  Rank& back = add_rank(1, 2);
  list({&back});
  const auto next = prompt_of(77);
  expect_one_process(submit(*ranks[0]->node, decoder, next), next);
  const auto face_level = [&] {
    return ranks[0]->node->board->encoder_free_blocks == blocks_ && back.part->load().prompts == 0;
  };
  EXPECT_TRUE(test::eventually(face_level, 20s));
}

TEST_P(EncoderPipelineTest, ALaterLifeOfTheFaceFindsAllRanksEmpty) {
  const auto ranks = add_pipeline({0, 2, 3, 6});
  Node& decoder = add_real_decoder();
  ranks[2]->engram->set(false);
  const auto sink = submit(*ranks[0]->node, decoder, prompt_of(300));
  EXPECT_TRUE(test::eventually([&] { return ranks[2]->engram->somebody_waits(); }));
  kill_encoder(*ranks[0]->node);
  ranks[2]->engram->set(true);
  EXPECT_EQ(error_of(sink).code, Errc::unavailable);
  EXPECT_GT(ranks[1]->part->load().prompts, 0);
  Rank& face = add_rank(0, 2);
  const auto request = prompt_of(77);
  expect_one_process(submit(*face.node, decoder, request), request);
  ranks[0]->node->encoder = EncoderStageActor{};
  expect_ranks_level();
}

TEST_P(EncoderPipelineTest, WithoutAllRanksThereIsNoEncoder) {
  const auto ranks = add_pipeline({0, 2, 3, 6});
  Node& decoder = add_real_decoder();
  list({ranks[1]});
  const auto route = find_route(directory_, place(0), ServiceRole::encoder_part);
  ASSERT_FALSE(route.has_value());
  EXPECT_EQ(route.error().context, "pipeline reader: nobody has rank 2, \"reader 3-5\"");
  // Not the session's word, but the reason for it.
  EXPECT_EQ(error_of(submit(*ranks[0]->node, decoder, prompt_of(5))).code, Errc::unavailable);
  expect_ranks_level();
}

TEST(PipelineWire, AnyBytesAreSafeInput) {
  PipelineChunk chunk;
  chunk.face = 7;
  chunk.cut = 3;
  chunk.route.push_back({"127.0.0.1", 4711, 9, 12});
  chunk.live = {RequestId{1}, RequestId{2}};
  chunk.chunk.parts.push_back({RequestId{1}, 100, 40, {1, 2, 3}, {9, 8}});
  chunk.remaining = {1500ms};
  chunk.rows.resize(40);
  const auto bytes = encode(chunk);
  const auto copy = decode_chunk(bytes);
  ASSERT_TRUE(copy.has_value());
  EXPECT_EQ(encode(*copy), bytes);
  EXPECT_EQ(copy->chunk.parts[0].history, chunk.chunk.parts[0].history);
  PipelineAnswer answer;
  answer.parts.push_back({RequestId{1}, 43, true, 2, std::vector<std::byte>(9), {}});
  EXPECT_EQ(encode(*decode_answer(encode(answer))), encode(answer));
  PipelineRelease release;
  release.id = RequestId{3};
  release.revoke = true;
  EXPECT_EQ(encode(*decode_release(encode(release))), encode(release));

  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode_chunk(std::span(bytes).first(length)).has_value()) << length;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    auto damaged = bytes;
    for (int j = 0; j < 3; ++j) damaged[random() % damaged.size()] = std::byte(random() % 256);
    (void)decode_chunk(damaged);
    (void)decode_answer(damaged);
    (void)decode_release(damaged);
  }
}

}  // namespace
}  // namespace cedar::actors
