// An encoder spread over several nodes: what decoders get of it is what one encoder gives, and every rank's pools return to
// their level, whatever is cancelled or lost.

#include <condition_variable>
#include <set>

#include "actors/encoder_face.h"
#include "actors/encoder_part.h"
#include "tests/actors/pipeline_fixture.h"

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

struct WithEngram {
  std::shared_ptr<GatedEngram> engram;
};

class EncoderPipelineTest : public PipelineFixture<EncoderPart, WithEngram> {
 protected:
  EncoderPipelineTest() : PipelineFixture("reader", 3) {}

  void start(Rank& rank, const PipelinePlace& here) override {
    const auto model = load(model::Role::encoder, here);
    rank.engram = std::make_shared<GatedEngram>(model);
    if (here.is_face()) {
      auto face = make_face_engine(model, rank.engram, rank_options());
      EXPECT_TRUE(face.has_value()) << face.error().message();
      rank.node->encoder = EncoderStageActor(system_->spawn<EncoderFace, caf::detached>(
          EncoderFaceSetup{face->make, rank.node->plane, here, rank.node->board, nullptr}));
      EXPECT_TRUE(test::eventually([&] { return rank.node->board->encoder_free_blocks > 0; }));
    } else {
      auto part = EncoderPart::start(rank.node->plane, {model, rank.engram, rank_options(), here});
      EXPECT_TRUE(part.has_value()) << part.error().message();
      rank.part = std::move(*part);
    }
  }

  static GenerateRequest request_of(Tokens prompt) {
    GenerateRequest request = prompt_of(0);
    request.decode.prompt = std::move(prompt);
    return request;
  }
  void expect_one_process(const Sink& sink, const GenerateRequest& request) {
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
