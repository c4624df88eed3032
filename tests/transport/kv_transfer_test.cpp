// Prompts read by one engine and decoded by another, each with a pool and weights of its own: KV blocks and the state after
// the prompt go from one's memory to the other's through transports, in host memory on the way where the pools are a GPU's.
// The answers are those of one engine that does both.

#include <algorithm>
#include <random>

#include "core/device_memory.h"
#include "engine/decode_engine.h"
#include "engine/engine.h"
#include "engine/prefill_engine.h"
#include "tests/support/test_model.h"
#include "tests/transport/backends.h"

namespace cedar::test {
namespace {

using Tokens = std::vector<TokenId>;
using engine::EngineOptions;
using engine::LoadedModel;
namespace testing_model = cedar::testing;

struct Place {
  Device device;
  TransportBackend backend;
};
void PrintTo(const Place& place, std::ostream* out) {
  *out << to_string(place.device) << "_" << place.backend.name;
}

class KvTransfer : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (GetParam().device.kind == DeviceKind::cuda && cuda_device_count() == 0) {
      GTEST_SKIP() << "this machine lacks a CUDA device";
    }
  }

  EngineOptions options() const {
    EngineOptions options = testing_model::test_options();
    options.device = GetParam().device;
    return options;
  }
  std::shared_ptr<const LoadedModel> load(model::Role role) const {
    engine::Runtime runtime(options());
    auto loaded = engine::load_model(testing_model::mini_path(), role, runtime.context());
    EXPECT_TRUE(loaded.has_value()) << (loaded ? "" : loaded.error().message());
    return loaded ? *loaded : nullptr;
  }
  static engine::DecodeRequest request(RequestId id, const Tokens& prompt) {
    engine::DecodeRequest request;
    request.id = id;
    request.prompt = prompt;
    request.max_new_tokens = 16;
    request.sampling.temperature = 0;
    request.ignore_eos = true;
    return request;
  }

  /// One engine's answers.
  std::vector<Tokens> expected(const std::vector<Tokens>& prompts) const {
    std::vector<Tokens> answers(prompts.size());
    auto whole = engine::Engine::create(load(model::Role::all), options());
    EXPECT_TRUE(whole.has_value()) << (whole ? "" : whole.error().message());
    if (!whole) return answers;
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_TRUE((*whole)->submit(request(RequestId{i}, prompts[i]), {},
                                   [&answers, i](const engine::TokenEvent& event) {
                                     EXPECT_FALSE(event.error.has_value());
                                     answers[i].push_back(event.token.token);
                                   }));
    }
    while (!(*whole)->idle()) {
      const Status status = (*whole)->step();
      EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message());
      if (!status) break;
    }
    return answers;
  }
};

/// Two connected transports and a region of each, for one range at a time.
class Wire {
 public:
  Wire(const TransportBackend& backend, uint64_t bytes) : network_(backend) {
    from_ = network_.add(network_.options(1)).transport;
    to_ = network_.add(network_.options(2)).transport;
    source_ = *from_->allocate(bytes);
    target_ = *to_->allocate(bytes);
    const auto peer = connect_to(*to_, from_->listen_port());
    EXPECT_TRUE(peer.has_value()) << (peer ? "" : peer.error().message());
  }
  ~Wire() {
    to_->shutdown();
    from_->shutdown();
  }

  /// `bytes`, at the other end.
  std::span<const std::byte> carry(std::span<const std::byte> bytes) {
    std::copy(bytes.begin(), bytes.end(), source_.memory.data);
    OfferRequest offer;
    offer.region = source_.id;
    offer.ranges = {{0, bytes.size(), std::nullopt}};
    offer.checksums = true;
    offer.lease_deadline = in(seconds(60));
    auto descriptor = from_->offer(std::move(offer));
    EXPECT_TRUE(descriptor.has_value()) << (descriptor ? "" : descriptor.error().message());
    if (!descriptor) return {};
    PullRequest pull;
    pull.source = std::move(*descriptor);
    pull.target = {{target_.id, 0}};
    pull.deadline = in(seconds(60));
    const Outcome outcome;
    EXPECT_TRUE(to_->pull(std::move(pull), Outcome(outcome).callback()).has_value());
    const Status status = outcome.wait(seconds(60));
    EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().message());
    carried_ += bytes.size();
    return {target_.memory.data, bytes.size()};
  }
  uint64_t carried() const { return carried_; }

 private:
  Network network_;
  std::unique_ptr<Transport> from_, to_;
  Region source_, target_;
  uint64_t carried_ = 0;
};

TEST_P(KvTransfer, AnswersAreOneEngines) {
  std::vector<Tokens> prompts;
  std::mt19937 random(9);
  for (const size_t length : {size_t{3}, size_t{64}, size_t{147}, size_t{300}}) {
    Tokens prompt{0};
    while (prompt.size() < length) prompt.push_back(static_cast<TokenId>(random() % 1200));
    prompts.push_back(std::move(prompt));
  }

  const auto encoder_weights = load(model::Role::encoder),
             decoder_weights = load(model::Role::decoder);
  ASSERT_TRUE(encoder_weights != nullptr && decoder_weights != nullptr);
  auto encoder = engine::PrefillEngine::create(
      encoder_weights, engine::local_engram_source(encoder_weights), options());
  ASSERT_TRUE(encoder.has_value()) << encoder.error().message();
  auto decoder = engine::DecodeEngine::create(
      decoder_weights, engine::local_engram_source(decoder_weights), options());
  ASSERT_TRUE(decoder.has_value()) << decoder.error().message();
  Wire wire(GetParam().backend, uint64_t{4} << 20);
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_TRUE((*encoder)->submit({RequestId{i}, prompts[i], {}}).has_value());
    ASSERT_TRUE((*decoder)->reserve(request(RequestId{i}, prompts[i])).has_value());
  }
  std::vector<int64_t> sent(prompts.size(), 0);
  while (!(*encoder)->idle()) {
    const auto events = (*encoder)->step();
    ASSERT_TRUE(events.has_value()) << events.error().message();
    for (const engine::PrefillEvent& event : *events) {
      // Blocks go as they get ready, the state when the prompt is read.
      for (int64_t& at = sent[event.id.value]; at < event.blocks_ready; ++at) {
        const auto block = wire.carry((*encoder)->block(event.id, at));
        const auto read = (*encoder)->block(event.id, at);
        ASSERT_TRUE(std::equal(block.begin(), block.end(), read.begin(), read.end()));
        const Status imported = (*decoder)->import_block(event.id, at, block);
        ASSERT_TRUE(imported.has_value()) << imported.error().message();
      }
      if (!event.finished) continue;
      const auto state = (*encoder)->take_handoff(event.id);
      ASSERT_TRUE(state.has_value()) << state.error().message();
      std::vector<std::byte> bytes(static_cast<size_t>(serialised_bytes(*state)));
      serialise(*state, bytes);
      auto arrived = engine::parse_handoff(wire.carry(bytes));
      ASSERT_TRUE(arrived.has_value()) << arrived.error().message();
      ASSERT_TRUE((*decoder)->start(event.id, std::move(*arrived)).has_value());
      (*encoder)->release(event.id);
    }
  }
  std::vector<Tokens> answers(prompts.size());
  while (!(*decoder)->idle()) {
    const auto events = (*decoder)->step();
    ASSERT_TRUE(events.has_value()) << events.error().message();
    for (const engine::TokenEvent& event : *events) {
      ASSERT_FALSE(event.error.has_value()) << event.error->message();
      answers[event.id.value].push_back(event.token.token);
    }
  }
  EXPECT_GT(wire.carried(), 0u);
  const auto want = expected(prompts);
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(answers[i].size(), 16u) << i;
    EXPECT_EQ(answers[i], want[i]) << i;
  }
}

std::vector<Place> places() {
  std::vector<Place> all;
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const TransportBackend& backend : transport_backends()) {
      all.push_back({Device{kind, 0}, backend});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Devices, KvTransfer, ::testing::ValuesIn(places()), [](const auto& place) {
  return std::string(place.param.device.kind == DeviceKind::cuda ? "cuda" : "cpu") + "_" +
         place.param.backend.name;
});

}  // namespace
}  // namespace cedar::test
