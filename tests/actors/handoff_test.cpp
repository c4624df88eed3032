// Hand-offs between processes' transports: what is fetched, what a fault costs, and that everything comes back. The field
// reports (B..) are scenarios that have gone wrong elsewhere.

#include "tests/actors/handoff_fixture.h"

namespace cedar::actors {
namespace {

using engine::FinishReason;
using test::eventually;
using testing::HasSubstr;
using namespace std::chrono_literals;

class HandoffTest : public HandoffFixture {};
INSTANTIATE_TEST_SUITE_P(Backends, HandoffTest, testing::ValuesIn(handoff_backends()),
                         [](const auto& backend) { return backend.param.name; });

TEST_P(HandoffTest, AnswersComeOverTheDataPlane) {
  Node& encoder = add_encoder();
  Node& decoder = add_decoder();
  // Around whole blocks of four tokens and whole chunks of eight (B07).
  for (const size_t tokens : {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 40}) {
    const auto sink = submit(encoder, decoder, request(tokens, 100));
    expect_answer(sink, request(tokens, 100));
  }
  expect_level();
  EXPECT_EQ(decoder.script->imports, 1 + 1 + 1 + 2 + 2 + 2 + 3 + 4 + 4 + 5 + 10);
  EXPECT_EQ(encoder.transport().stats().leases_expired, 0u);
}

// B01: a load that is cancelled while its producer is silent gives everything back.
TEST_P(HandoffTest, CancelledLoadsOfASilentProducerGiveTheirRoomBack) {
  Node& encoder = add_encoder();
  Node& decoder = add_decoder([](test::EngineScript& script) {
    script.blocks = 8;
    script.block_tokens = 4;
  });
  // Connected before the silence.
  expect_answer(submit(encoder, decoder, request(4, 4)), request(4, 4));
  const size_t first = sessions_.size();
  encoder.faults().hold_data = true;
  encoder.faults().delay_us = GetParam().native_get ? 1000 : 0;
  std::vector<Sink> sinks;
  for (int i = 0; i < 10; ++i) sinks.push_back(submit(encoder, decoder, request(4, 4)));
  if (!GetParam().native_get) {
    ASSERT_TRUE(eventually([&] { return decoder.board->decoder_staging_slots > 0; }));
  }
  for (size_t i = 0; i < sinks.size(); ++i) cancel(first + i);
  for (const auto& sink : sinks) ASSERT_TRUE(sink->wait_end());
  EXPECT_TRUE(eventually([&] { return decoder.board->decoder_free_blocks == 8; }));
  EXPECT_TRUE(eventually([&] { return decoder.board->decoder_staging_slots == 0; }));
  encoder.faults().hold_data = false;
  encoder.faults().delay_us = 0;
  expect_answer(submit(encoder, decoder, request(4, 4)), request(4, 4));
  expect_level();
}

// B03: a late write for a cancelled request lands nowhere where another's bytes are.
TEST_P(HandoffTest, ALateWriteOfACancelledLoadHurtsNobody) {
  OfferPullerOptions pulls;
  pulls.block_slots = 4;
  Node& encoder = add_encoder([](test::EngineScript& s) { s.block_bytes = 4096; });
  Node& decoder = add_decoder([](test::EngineScript& s) { s.block_bytes = 4096; }, pulls);
  for (int round = 0; round < 3; ++round) {
    encoder.faults().hold_data = true;
    const auto abandoned = submit(encoder, decoder, request(16, 4));
    const size_t session = sessions_.size() - 1;
    if (!GetParam().native_get) {
      ASSERT_TRUE(eventually([&] { return decoder.board->decoder_staging_slots >= 4; }));
    }
    cancel(session);
    ASSERT_TRUE(abandoned->wait_end());
    // Needs all four slots.
    GenerateRequest other = request(16, 4);
    other.decode.prompt[3] = 999;
    const auto sink = submit(encoder, decoder, other);
    std::this_thread::sleep_for(20ms);
    encoder.faults().hold_data = false;
    expect_answer(sink, other);
    expect_level();
  }
}

// B05: what the producer did counts, whatever the consumer may have expected of chunks.
TEST_P(HandoffTest, StagingIsFullAgainAfterAnyPlan) {
  OfferPullerOptions pulls;
  pulls.block_slots = 3;  // fewer than a chunk has
  pulls.pull_blocks = 2;
  Node& encoder = add_encoder();
  Node& decoder = add_decoder({}, pulls);
  for (int i = 0; i < 20; ++i) {
    encoder.script->chunk_tokens = 1 + (i * 7) % 37;
    const auto asked = request(static_cast<size_t>(20 + i), 100);
    expect_answer(submit(encoder, decoder, asked), asked);
    ASSERT_TRUE(eventually([&] { return level(); })) << i;
  }
}

// B08: an offer that names what is not there is refused, and said to be.
/// A session that keeps what its stages say.
struct Heard {
  std::mutex mutex;
  std::vector<PullFailed> pulls;
  std::vector<PrefillProgress> progress;
};
class ListeningSession final : public SessionActor::base {
 public:
  ListeningSession(caf::actor_config& config, std::shared_ptr<Heard> heard)
      : typed_event_based_actor(config), heard_(std::move(heard)) {}
  behavior_type make_behavior() override {
    return {
        [this](const PrefillProgress& message) {
          std::lock_guard lock(heard_->mutex);
          heard_->progress.push_back(message);
        },
        [](const ReplayBegun&) {},
        [](const TokenBatch&) {},
        [](const BlockWritten&) {},
        [this](const PullFailed& message) {
          std::lock_guard lock(heard_->mutex);
          heard_->pulls.push_back(message);
        },
        [](const StageFailed&) {},
        [](const EndSession&) {},
    };
  }

 private:
  std::shared_ptr<Heard> heard_;
};

class OfferTest : public HandoffFixture {
 protected:
  /// One hand-off between one encoder and one decoder, driven by hand.
  void begin(int64_t decoder_block_bytes = 64, const OfferPullerOptions& pulls = {}) {
    encoder_ = &add_encoder([](test::EngineScript& script) {
      script.sequences = 64;  // nothing that is offered here is fetched
      script.blocks = 4096;
    });
    decoder_ = &add_decoder(
        [&](test::EngineScript& script) { script.block_bytes = decoder_block_bytes; }, pulls);
    sessions_.push_back(system_->spawn<ListeningSession>(heard_));
    request_ = std::make_shared<const GenerateRequest>(request(16, 4));
    caf::anon_send(decoder_->decoder,
                   ReserveRoom{id_, {request_}, sessions_[0], encoder_->plane.endpoint, 60s});
    ASSERT_TRUE(eventually([&] { return decoder_->board->decoder_sequences == 1; }));
  }
  /// The first blocks that a new attempt offers.
  Offer new_offer() {
    ++attempt_;
    caf::anon_send(encoder_->encoder, BeginPrefill{{id_, attempt_}, {request_}, sessions_[0], 60s});
    Offer offer;
    EXPECT_TRUE(eventually([&] {
      std::lock_guard lock(heard_->mutex);
      for (const PrefillProgress& progress : heard_->progress) {
        if (progress.attempt.number == attempt_ && progress.first_block == 0) {
          offer = progress.blocks;
        }
      }
      return !offer.empty();
    }));
    return offer;
  }
  static transport::RegionDescriptor parsed(const Offer& offer) {
    return *transport::parse_descriptor(
        {reinterpret_cast<const std::byte*>(offer.descriptor.data()), offer.descriptor.size()});
  }
  static Offer with(Offer offer, const transport::RegionDescriptor& descriptor) {
    const auto bytes = transport::serialise(descriptor);
    const auto* first = reinterpret_cast<const uint8_t*>(bytes.data());
    offer.descriptor.assign(first, first + bytes.size());
    return offer;
  }
  /// How the decoder refuses an offer.
  Error refusal(const Offer& offer, int64_t first = 0) {
    const size_t before = failures();
    caf::anon_send(decoder_->decoder, ImportBlocks{{id_, attempt_}, first, offer});
    EXPECT_TRUE(eventually([&] { return failures() > before; }));
    std::lock_guard lock(heard_->mutex);
    return heard_->pulls.empty() ? Error{} : heard_->pulls.back().error;
  }
  Error refusal(const std::function<void(transport::RegionDescriptor&)>& change) {
    const Offer offer = new_offer();
    auto descriptor = parsed(offer);
    change(descriptor);
    return refusal(with(offer, descriptor));
  }
  size_t failures() {
    std::lock_guard lock(heard_->mutex);
    return heard_->pulls.size();
  }

  Node* encoder_ = nullptr;
  Node* decoder_ = nullptr;
  std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  std::shared_ptr<const GenerateRequest> request_;
  const HandoffId id_{77};
  uint32_t attempt_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Backends, OfferTest, testing::ValuesIn(handoff_backends()),
                         [](const auto& backend) { return backend.param.name; });

// B08
TEST_P(OfferTest, WhatIsNotThereIsRefusedByName) {
  begin();
  EXPECT_EQ(refusal([](auto& d) { d.lease = LeaseId{987654}; }).code, Errc::not_found);
  EXPECT_EQ(refusal([](auto& d) { d.ranges[0].offset += 1 << 20; }).code, Errc::invalid_argument);
  EXPECT_EQ(refusal([](auto& d) { d.region = transport::RegionId{987654}; }).code, Errc::not_found);
  EXPECT_EQ(refusal([](auto& d) { d.ranges[0].offset = 60 * 64; }).code, Errc::invalid_argument);
  EXPECT_THAT(refusal(new_offer(), 1 << 20).message(), HasSubstr("the decoder has 64"));
  EXPECT_THAT(refusal(new_offer(), -1).message(), HasSubstr("from block -1"));
  EXPECT_THAT(refusal([](auto& d) { d.ranges[1].bytes = 63; }).message(),
              HasSubstr("KV block of 63 bytes, expected 64"));
  EXPECT_EQ(refusal([](auto& d) { ++d.owner.generation; }).code, Errc::invalid_argument);
  Offer nonsense = new_offer();
  nonsense.descriptor.resize(7);
  EXPECT_EQ(refusal(nonsense).code, Errc::invalid_argument);
  EXPECT_EQ(decoder_->script->imports, 0);
  EXPECT_TRUE(eventually([&] { return decoder_->board->decoder_staging_slots == 0; }));
  // The reservation stands, and a good offer is taken.
  const Offer good = new_offer();
  caf::anon_send(decoder_->decoder, ImportBlocks{{id_, attempt_}, 0, good});
  EXPECT_TRUE(eventually([&] { return decoder_->script->imports > 0; }));
}

// B13: another layout is refused by its numbers; an owner that does not answer costs its own request only.
TEST_P(OfferTest, AnotherLayoutIsRefused) {
  begin(128);
  const Error error = refusal([](auto&) {});
  EXPECT_EQ(error.code, Errc::invalid_argument);
  EXPECT_THAT(error.context, HasSubstr("KV block of 64 bytes, expected 128"));
}

TEST_P(OfferTest, AHandshakeThatNobodyAnswersEndsAtItsDeadline) {
  OfferPullerOptions pulls;
  pulls.connect_timeout = 1000ms;
  begin(64, pulls);
  Node& silent = add_node();
  silent.faults().cut = true;
  const Offer offer = new_offer();
  auto descriptor = parsed(offer);
  descriptor.owner = silent.transport().identity();
  Offer unreachable = with(offer, descriptor);
  unreachable.owner = silent.plane.endpoint;
  const auto begin_time = std::chrono::steady_clock::now();
  const Error error = refusal(unreachable);
  EXPECT_TRUE(error.code == Errc::deadline_exceeded || error.code == Errc::unavailable)
      << error.message();
  EXPECT_LT(std::chrono::steady_clock::now() - begin_time, 30s);  // not the request's minute
  const Offer good = new_offer();
  caf::anon_send(decoder_->decoder, ImportBlocks{{id_, attempt_}, 0, good});
  EXPECT_TRUE(eventually([&] { return decoder_->script->imports > 0; }));
}

// B15: pages of a hand-off under way are nobody else's, however small the encoder's pool is.
TEST_P(HandoffTest, PagesOfAPendingHandOffArePinned) {
  Node& encoder = add_encoder([](test::EngineScript& script) { script.blocks = 4; });
  Node& decoder = add_decoder();
  encoder.faults().delay_us = 2000;
  std::vector<Sink> sinks;
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < 16; ++i) {
    requests.push_back(request(5 + i % 4, 4));
    requests.back().decode.prompt[0] = static_cast<TokenId>(i);
    sinks.push_back(submit(encoder, decoder, requests.back()));
  }
  for (size_t i = 0; i < sinks.size(); ++i) expect_answer(sinks[i], requests[i]);
  encoder.faults().delay_us = 0;
  expect_level();
}

// B16: the hand-off's id is all that counts; what gateways call their requests may be the same.
TEST_P(HandoffTest, RequestsOfTheSameNumberDoNotMeet) {
  Node& encoder = add_encoder();
  Node& decoder = add_decoder();
  std::vector<Sink> sinks;
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < 6; ++i) {
    requests.push_back(request(9 + i, 20));  // all have the id 1
    sinks.push_back(submit(encoder, decoder, requests.back()));
  }
  for (size_t i = 0; i < sinks.size(); ++i) expect_answer(sinks[i], requests[i]);
  expect_level();
}

// B17: clients that leave while an encoder far away reads do not delay the next one.
TEST_P(HandoffTest, AbandonedPromptsStopAtTheEncoder) {
  Node& encoder = add_encoder([](test::EngineScript& script) {
    script.sequences = 1;
    script.blocks = 4096;
    script.encoder_step_us = 5000;
  });
  Node& decoder = add_decoder([](test::EngineScript& script) {
    script.sequences = 16;
    script.blocks = 16 * 1200;
  });
  std::vector<Sink> sinks;
  for (int i = 0; i < 10; ++i) sinks.push_back(submit(encoder, decoder, request(4000)));
  ASSERT_TRUE(eventually([&] { return encoder.script->encoder_steps > 1; }));
  for (size_t i = 0; i < sinks.size(); ++i) cancel(i);
  const int64_t steps = encoder.script->encoder_steps;
  expect_answer(submit(encoder, decoder, request(8, 4)), request(8, 4));
  // The chunk that ran, one that may have begun, its own.
  EXPECT_LE(encoder.script->encoder_steps - steps, 4);
  expect_level();
}

// B19, B21: what one of the pools can never hold ends at once by its numbers, and nothing is transferred.
TEST_P(HandoffTest, WhatNeverFitsEntersNoQueue) {
  Node& encoder = add_encoder([](test::EngineScript& script) { script.blocks = 8; });
  Node& decoder = add_decoder([](test::EngineScript& script) { script.blocks = 16; });
  const Error encoders = error_of(submit(encoder, decoder, request(9 * 4, 4)));
  EXPECT_EQ(encoders.code, Errc::context_too_long);
  EXPECT_THAT(encoders.context, HasSubstr("9 KV blocks needed, the pool has 8"));
  const Error decoders = error_of(submit(encoder, decoder, request(4, 4 * 16)));
  EXPECT_EQ(decoders.code, Errc::context_too_long);
  EXPECT_THAT(decoders.context, HasSubstr("17 KV blocks needed, the pool has 16"));
  EXPECT_EQ(decoder.transport().stats().pulls_started, 0u);
  EXPECT_EQ(routes_->encoders_replaced, 0);
  expect_level();
}

// B28: one transfer that fails is one request's affair, and costs it a second reading.
TEST_P(HandoffTest, AFailedTransferIsReadAgainAndOthersGoOn) {
  if (GetParam().native_get) GTEST_SKIP() << "nothing is sent that could fail";
  Node& encoder = add_encoder();
  Node& decoder = add_decoder();
  may_replace_with_encoder(encoder);
  expect_answer(submit(encoder, decoder, request(4, 4)), request(4, 4));
  encoder.faults().fail_data = 1;
  std::vector<Sink> sinks;
  std::vector<GenerateRequest> requests;
  for (size_t i = 0; i < 8; ++i) {
    requests.push_back(request(21 + i, 100));
    sinks.push_back(submit(encoder, decoder, requests.back()));
  }
  for (size_t i = 0; i < sinks.size(); ++i) expect_answer(sinks[i], requests[i]);
  EXPECT_EQ(routes_->encoders_replaced, 1);
  expect_level();
}

// B28, with nobody to read it again: that request fails by name, the others do not.
TEST_P(HandoffTest, AFailedTransferFailsItsRequestAlone) {
  if (GetParam().native_get) GTEST_SKIP() << "nothing is sent that could fail";
  Node& encoder = add_encoder();
  Node& decoder = add_decoder();
  expect_answer(submit(encoder, decoder, request(4, 4)), request(4, 4));
  encoder.faults().fail_data = 1;
  std::vector<Sink> sinks;
  for (size_t i = 0; i < 8; ++i) sinks.push_back(submit(encoder, decoder, request(21 + i, 100)));
  int failed = 0;
  for (const Sink& sink : sinks) {
    const auto end = sink->wait_end(30s);
    ASSERT_TRUE(end);
    if (end->error) {
      ++failed;
    } else {
      EXPECT_EQ(end->reason, FinishReason::stop);
    }
  }
  EXPECT_EQ(failed, 1);
  expect_level();
}

/// A connection that ends takes many pulls with it. None of them needs another encoder, or a connection of its own.
TEST_P(HandoffTest, PullsThatLoseTheirConnectionShareANewOne) {
  if (GetParam().native_get) GTEST_SKIP() << "reads in place do not wait for the producer";
  OfferPullerOptions pulls;
  pulls.pull_blocks = 2;
  Node& encoder = add_encoder();
  Node& decoder = add_decoder({}, pulls);
  expect_answer(submit(encoder, decoder, request(4, 4)), request(4, 4));
  encoder.faults().hold_data = true;
  std::vector<Sink> sinks;
  for (int i = 0; i < 3; ++i) sinks.push_back(submit(encoder, decoder, request(30, 4)));
  ASSERT_TRUE(eventually([&] { return decoder.transport().stats().pulls_unfinished >= 6; }));
  for (const auto& peer : encoder.transport().peers()) encoder.transport().disconnect(peer.peer);
  encoder.faults().hold_data = false;
  for (const Sink& sink : sinks) expect_answer(sink, request(30, 4));
  EXPECT_EQ(routes_->encoders_replaced, 0);
  EXPECT_EQ(decoder.transport().stats().peers_ready, 1u);
  expect_level();
}

/// The producer is there and sends nothing: the pull's own deadline ends it, long before the request's.
TEST_P(HandoffTest, APullThatStallsIsReadAgainElsewhere) {
  if (GetParam().native_get) GTEST_SKIP() << "reads in place do not wait for the producer";
  OfferPullerOptions pulls;
  pulls.pull_timeout = 200ms;
  Node& stalling = add_encoder();
  Node& healthy = add_encoder();
  Node& decoder = add_decoder({}, pulls);
  may_replace_with_encoder(healthy);
  stalling.faults().hold_data = true;
  const auto asked = request(30, 100);
  expect_answer(submit(stalling, decoder, asked), asked);
  EXPECT_EQ(routes_->encoders_replaced, 1);
  stalling.faults().hold_data = false;
  expect_level();
}

}  // namespace
}  // namespace cedar::actors
