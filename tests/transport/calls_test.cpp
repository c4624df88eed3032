// Requests with replies over every back end.

#include "transport/calls.h"

#include <gmock/gmock.h>

#include <atomic>

#include "tests/transport/suite.h"

namespace cedar::test {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes random_bytes(uint64_t count, uint32_t seed) {
  Bytes bytes(count);
  fill_random(bytes.data(), count, seed);
  return bytes;
}

/// What a call's callback was given, and how often.
class Answer {
 public:
  CallCallback callback() {
    return [state = state_](Result<Bytes> answer) {
      std::lock_guard lock(state->mutex);
      ++state->count;
      state->when = Clock::now();
      state->value = std::move(answer);
      state->changed.notify_all();
    };
  }
  Result<Bytes> wait(milliseconds limit = seconds(20)) const {
    std::unique_lock lock(state_->mutex);
    if (!state_->changed.wait_for(lock, limit, [this] { return state_->count > 0; })) {
      return make_error(Errc::internal, "no callback");
    }
    return state_->value;
  }
  int count() const {
    std::lock_guard lock(state_->mutex);
    return state_->count;
  }
  TimePoint when() const {
    std::lock_guard lock(state_->mutex);
    return state_->when;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int count = 0;
    TimePoint when{};
    Result<Bytes> value = make_error(Errc::internal, "nothing yet");
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

void expect_error(const Answer& answer, Errc code, const char* words = "") {
  const auto result = answer.wait();
  ASSERT_FALSE(result.has_value()) << "expected " << to_string(code);
  EXPECT_EQ(result.error().code, code) << result.error().message();
  EXPECT_THAT(result.error().context, HasSubstr(words));
}

class CallsTest : public ::testing::TestWithParam<TransportBackend> {
 protected:
  struct Node {
    std::unique_ptr<Calls> calls;
    std::unique_ptr<Transport> transport;
    std::shared_ptr<Faults> faults;

    ~Node() { stop(); }
    void stop() {
      if (calls) calls->shutdown();
      if (transport) transport->shutdown();
    }
    CallTarget target() const {
      return {"127.0.0.1", transport->listen_port(), transport->identity()};
    }
  };

  std::unique_ptr<Node> add(uint32_t id, const CallOptions& options = {}, uint64_t generation = 1,
                            uint16_t port = 0) {
    auto node = std::make_unique<Node>();
    node->calls = std::make_unique<Calls>(options);
    TransportOptions transport = network_.options(id, generation);
    transport.listen_port = port;
    node->calls->install(transport);
    auto made = network_.add(transport);
    node->transport = std::move(made.transport);
    node->faults = made.faults;
    if (node->transport) node->calls->attach(*node->transport);
    return node;
  }
  Answer ask(Node& from, const Node& to, CallMethod method, Bytes request,
             milliseconds limit = seconds(20)) {
    Answer answer;
    from.calls->call(to.target(), method, std::move(request), in(limit), answer.callback());
    return answer;
  }
  /// Method 1 sends the request back, byte by byte changed.
  static void serve_echo(Node& node) {
    node.calls->serve(1,
                      [](const CallContext&, std::span<const std::byte> request, CallReply reply) {
                        Bytes answer(request.begin(), request.end());
                        for (std::byte& byte : answer) byte ^= std::byte{0x5a};
                        reply(std::move(answer));
                      });
  }
  static Bytes echoed(Bytes bytes) {
    for (std::byte& byte : bytes) byte ^= std::byte{0x5a};
    return bytes;
  }
  static void expect_idle(const Node& node) {
    EXPECT_TRUE(soon([&] {
      const CallStats stats = node.calls->stats();
      return stats.calls_unanswered == 0 && stats.serving == 0 && stats.buffered_bytes == 0;
    }));
  }

  Network network_{GetParam()};
};

TEST_P(CallsTest, BodiesOfAnySizeComeBack) {
  const auto client = add(1), server = add(2);
  serve_echo(*server);
  for (const uint64_t bytes : {0u, 1u, 65512u, 65513u, 65514u, 200000u, 3u << 20, 16u << 20}) {
    const Bytes request = random_bytes(bytes, static_cast<uint32_t>(bytes));
    const auto reply = ask(*client, *server, 1, request).wait();
    ASSERT_TRUE(reply.has_value()) << bytes << ": " << reply.error().message();
    EXPECT_TRUE(*reply == echoed(request)) << bytes;
  }
  EXPECT_EQ(client->calls->stats().calls_failed, 0u);
  EXPECT_EQ(client->transport->peers().size(), 1u);  // one connection for all of them
  expect_idle(*client);
  expect_idle(*server);
}

TEST_P(CallsTest, ManyAtOnceFromBothSides) {
  const auto a = add(1), b = add(2);
  serve_echo(*a);
  serve_echo(*b);
  std::vector<std::pair<Answer, Bytes>> answers;
  for (uint32_t i = 0; i < 200; ++i) {
    Bytes request = random_bytes(i % 10 == 0 ? 300000 : i * 37, i);
    Node& from = i % 2 == 0 ? *a : *b;
    answers.emplace_back(ask(from, i % 2 == 0 ? *b : *a, 1, request), echoed(request));
  }
  for (const auto& [answer, expected] : answers) {
    const auto reply = answer.wait();
    ASSERT_TRUE(reply.has_value()) << reply.error().message();
    EXPECT_TRUE(*reply == expected);
    EXPECT_EQ(answer.count(), 1);
  }
  expect_idle(*a);
  expect_idle(*b);
}

TEST_P(CallsTest, ANodeMayCallItself) {
  const auto node = add(1);
  serve_echo(*node);
  const Bytes request = random_bytes(200000, 3);
  const auto reply = ask(*node, *node, 1, request).wait();
  ASSERT_TRUE(reply.has_value()) << reply.error().message();
  EXPECT_TRUE(*reply == echoed(request));
  expect_error(ask(*node, *node, 9, {}), Errc::unsupported, "method 9");
  expect_idle(*node);
}

TEST_P(CallsTest, ErrorsTravelWithTheirTexts) {
  const auto client = add(1), server = add(2);
  server->calls->serve(7, [](const CallContext& context, std::vector<std::byte>, CallReply reply) {
    EXPECT_EQ(context.caller, (NodeIdentity{NodeId(1), 1}));
    EXPECT_GT(context.deadline, Clock::now());
    reply(make_error(Errc::context_too_long, "9 of 8 rows"));
    reply(Bytes{});  // is too much, and ignored
  });
  server->calls->serve(8, [](const CallContext&, std::vector<std::byte>, CallReply) {});
  expect_error(ask(*client, *server, 7, {}), Errc::context_too_long, "9 of 8 rows");
  expect_error(ask(*client, *server, 8, {}), Errc::internal, "no answer");
  expect_error(ask(*client, *server, 9, random_bytes(200000, 1)), Errc::unsupported, "method 9");
  expect_idle(*server);
}

TEST_P(CallsTest, AnAnswerMayComeLaterFromAnotherThread) {
  const auto client = add(1), server = add(2);
  std::mutex mutex;
  std::vector<CallReply> kept;
  server->calls->serve(1, [&](const CallContext&, std::vector<std::byte>, CallReply reply) {
    std::lock_guard lock(mutex);
    kept.push_back(std::move(reply));
  });
  const Answer first = ask(*client, *server, 1, {}), second = ask(*client, *server, 1, {});
  ASSERT_TRUE(soon([&] {
    std::lock_guard lock(mutex);
    return kept.size() == 2;
  }));
  EXPECT_EQ(first.count() + second.count(), 0);
  std::thread([&] {
    std::lock_guard lock(mutex);
    kept[1](random_bytes(9, 9));
    kept[0](random_bytes(8, 8));
    kept.clear();
  }).join();
  EXPECT_TRUE(first.wait().has_value());
  EXPECT_TRUE(*second.wait() == random_bytes(9, 9));
  expect_idle(*server);
}

TEST_P(CallsTest, AShortCallDoesNotWaitForALongOne) {
  const auto client = add(1), server = add(2);
  std::atomic<int> order{0};
  std::atomic<int> long_place{0}, short_place{0};
  std::promise<void> asked;
  server->calls->serve(1, [&](const CallContext&, std::vector<std::byte>, CallReply reply) {
    long_place = ++order;
    reply(Bytes{});
  });
  server->calls->serve(2, [&](const CallContext&, std::vector<std::byte>, CallReply reply) {
    short_place = ++order;
    reply(Bytes{});
  });
  // From a callback, which keeps the progress thread busy: nothing is sent before both calls have been made.
  Answer slow, quick;
  const Bytes much = random_bytes(16u << 20, 5);
  client->calls->call(server->target(), 2, {}, in(seconds(20)), [&](const auto&) {
    order = 0;
    slow = ask(*client, *server, 1, much);
    quick = ask(*client, *server, 2, {});
    asked.set_value();
  });
  asked.get_future().wait();
  ASSERT_TRUE(slow.wait().has_value());
  ASSERT_TRUE(quick.wait().has_value());
  EXPECT_LT(short_place, long_place);
}

TEST_P(CallsTest, TheCallbackComesAtTheDeadline) {
  const auto client = add(1), server = add(2);
  std::mutex mutex;
  std::vector<CallReply> kept;
  server->calls->serve(1, [&](const CallContext&, std::vector<std::byte>, CallReply reply) {
    std::lock_guard lock(mutex);
    kept.push_back(std::move(reply));
  });
  const TimePoint begin = Clock::now();
  const Answer answer = ask(*client, *server, 1, {}, milliseconds(150));
  expect_error(answer, Errc::deadline_exceeded);
  EXPECT_GE(answer.when() - begin, milliseconds(150));
  expect_idle(*server);  // it gives up, too
  {
    std::lock_guard lock(mutex);
    ASSERT_EQ(kept.size(), 1u);
    kept[0](Bytes{});  // nobody waits: dropped
    kept.clear();
  }
  serve_echo(*server);
  EXPECT_TRUE(ask(*client, *server, 1, {}).wait().has_value());
  EXPECT_EQ(answer.count(), 1);
}

TEST_P(CallsTest, NobodyAtTheAddressIsUnavailable) {
  const auto client = add(1);
  CallTarget nobody;
  {
    const auto server = add(2);
    nobody = server->target();
  }
  std::vector<Answer> answers(3);
  for (Answer& answer : answers) {
    client->calls->call(nobody, 1, {}, in(seconds(20)), answer.callback());
  }
  for (const Answer& answer : answers) {
    const auto reply = answer.wait();
    ASSERT_FALSE(reply.has_value());
    EXPECT_TRUE(reply.error().code == Errc::unavailable ||
                reply.error().code == Errc::deadline_exceeded)
        << reply.error().message();
  }
  expect_idle(*client);
}

TEST_P(CallsTest, AnotherLifeOfTheNodeIsRefused) {
  const auto client = add(1);
  const auto server = add(2, {}, 5);
  serve_echo(*server);
  CallTarget former = server->target();
  former.identity.generation = 4;
  Answer answer;
  client->calls->call(former, 1, {}, in(seconds(20)), answer.callback());
  expect_error(answer, Errc::stale_generation);
  EXPECT_TRUE(ask(*client, *server, 1, {}).wait().has_value());
}

TEST_P(CallsTest, APeerThatLeavesEndsItsCallsAtOnce) {
  std::mutex mutex;
  std::vector<CallReply> kept;
  std::vector<NodeIdentity> gone;
  const auto client = add(1);
  auto server = add(2);
  client->calls->watch_peers([&](const NodeIdentity& node, const Error&) {
    std::lock_guard lock(mutex);
    gone.push_back(node);
  });
  server->calls->serve(1, [&](const CallContext&, std::vector<std::byte>, CallReply reply) {
    std::lock_guard lock(mutex);
    kept.push_back(std::move(reply));
  });
  const Answer answer = ask(*client, *server, 1, {});
  ASSERT_TRUE(soon([&] {
    std::lock_guard lock(mutex);
    return kept.size() == 1;
  }));
  server->stop();
  expect_error(answer, Errc::unavailable);
  ASSERT_TRUE(soon([&] {
    std::lock_guard lock(mutex);
    return gone.size() == 1;
  }));
  EXPECT_EQ(gone[0], (NodeIdentity{NodeId(2), 1}));
  // Its next life is found at its new address.
  server = add(2, {}, 2);
  serve_echo(*server);
  EXPECT_TRUE(ask(*client, *server, 1, {}).wait().has_value());
  expect_idle(*client);
}

TEST_P(CallsTest, AServerThatAnswersNothingCostsNoMoreThanTheDeadline) {
  const auto client = add(1), server = add(2);
  serve_echo(*server);
  ASSERT_TRUE(ask(*client, *server, 1, {}).wait().has_value());
  server->faults->cut = true;
  expect_error(ask(*client, *server, 1, random_bytes(300000, 1), milliseconds(200)),
               Errc::deadline_exceeded);
  expect_idle(*client);
}

TEST_P(CallsTest, TooMuchIsRefused) {
  CallOptions few;
  few.max_calls = 2;
  few.max_call_bytes = 100000;
  const auto client = add(1, few);
  CallOptions one;
  one.max_served = 1;
  one.max_call_bytes = 70000;
  const auto server = add(2, one);
  std::mutex mutex;
  std::vector<CallReply> kept;
  server->calls->serve(1, [&](const CallContext&, std::vector<std::byte>, CallReply reply) {
    std::lock_guard lock(mutex);
    kept.push_back(std::move(reply));
  });
  server->calls->serve(2, [&](const CallContext&, std::vector<std::byte>, CallReply reply) {
    reply(random_bytes(70001, 1));
  });
  expect_error(ask(*client, *server, 1, random_bytes(100001, 1)), Errc::invalid_argument, "100001");
  expect_error(ask(*client, *server, 1, random_bytes(70001, 1)), Errc::invalid_argument, "70001");
  expect_error(ask(*client, *server, 2, {}), Errc::invalid_argument, "70001");
  const Answer first = ask(*client, *server, 1, {});
  ASSERT_TRUE(soon([&] {
    std::lock_guard lock(mutex);
    return kept.size() == 1;
  }));
  expect_error(ask(*client, *server, 1, {}), Errc::overloaded, "1 calls");
  const auto another = add(3);
  another->calls->serve(1, [&](const CallContext&, std::vector<std::byte>, CallReply reply) {
    std::lock_guard lock(mutex);
    kept.push_back(std::move(reply));
  });
  const Answer second = ask(*client, *another, 1, {});
  expect_error(ask(*client, *server, 1, {}), Errc::overloaded, "2 calls");
  ASSERT_TRUE(soon([&] {
    std::lock_guard lock(mutex);
    return kept.size() == 2;
  }));
  std::lock_guard lock(mutex);
  for (CallReply& reply : kept) reply(Bytes{});
  EXPECT_TRUE(first.wait().has_value());
  EXPECT_TRUE(second.wait().has_value());
  kept.clear();
}

TEST_P(CallsTest, AHandlerThatWasTakenAwayDoesNotRunAnyMore) {
  const auto client = add(1), server = add(2);
  for (int round = 0; round < 20; ++round) {
    auto alive = std::make_unique<std::atomic<int>>(1);
    std::atomic<bool> called{false};
    server->calls->serve(1, [&, life = alive.get()](const CallContext&, Bytes, CallReply reply) {
      called = true;
      std::this_thread::sleep_for(milliseconds(2));
      EXPECT_EQ(*life, 1);
      reply(Bytes{});
    });
    const Answer answer = ask(*client, *server, 1, {});
    ASSERT_TRUE(soon([&] { return called.load(); }));
    if (round % 2 == 0) server->calls->serve(1, {});
    else serve_echo(*server);
    *alive = 0;
    alive.reset();
    EXPECT_TRUE(answer.wait().has_value());
  }
  std::atomic<bool> called{false}, ended{false};
  server->calls->serve(1, [&](const CallContext&, Bytes, CallReply reply) {
    called = true;
    std::this_thread::sleep_for(milliseconds(20));
    ended = true;
    reply(Bytes{});
  });
  const Answer answer = ask(*client, *server, 1, {}, milliseconds(200));
  ASSERT_TRUE(soon([&] { return called.load(); }));
  server->calls->shutdown();
  EXPECT_TRUE(ended.load());
}

TEST_P(CallsTest, ShutdownEndsEveryCallOnce) {
  auto client = add(1), server = add(2);
  std::mutex mutex;
  std::vector<CallReply> kept;
  server->calls->serve(1, [&](const CallContext&, std::vector<std::byte>, CallReply reply) {
    std::lock_guard lock(mutex);
    kept.push_back(std::move(reply));
  });
  std::vector<Answer> answers;
  for (int i = 0; i < 20; ++i) answers.push_back(ask(*client, *server, 1, random_bytes(1000, 1)));
  client->stop();
  for (const Answer& answer : answers) {
    expect_error(answer, Errc::cancelled);
    EXPECT_EQ(answer.count(), 1);
  }
  Answer late;
  client->calls->call(server->target(), 1, {}, in(seconds(1)), late.callback());
  EXPECT_EQ(late.count(), 1);
  server->stop();
  server.reset();
  std::lock_guard lock(mutex);
  for (CallReply& reply : kept) reply(Bytes{});  // of a server that is gone
  kept.clear();
}

TEST_P(CallsTest, WhatIsNoCallIsCountedAndIgnored) {
  const auto client = add(1), server = add(2);
  serve_echo(*server);
  const auto peer = connect_to(*client->transport, server->transport->listen_port());
  ASSERT_TRUE(peer.has_value());
  std::mt19937 random(4);
  for (int i = 0; i < 300; ++i) {
    Bytes junk = random_bytes(random() % 64, static_cast<uint32_t>(i));
    if (!junk.empty() && i % 2 == 0) junk[0] = std::byte(1 + i / 2 % 2);
    ASSERT_TRUE(client->transport->send(peer->peer, 1, std::move(junk)).has_value());
  }
  ASSERT_TRUE(soon([&] { return server->calls->stats().bad_messages > 100; }));
  EXPECT_TRUE(ask(*client, *server, 1, {}).wait().has_value());
}

CEDAR_EACH_TRANSPORT(CallsTest);

}  // namespace
}  // namespace cedar::test
