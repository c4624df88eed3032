// Nothing is left behind: descriptors, threads, memory.

#include <dirent.h>
#include <malloc.h>

#include <fstream>

#include "tests/transport/suite.h"

namespace cedar::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized =
    true;  // their allocators keep freed memory: only descriptors and threads count
#else
constexpr bool kSanitized = false;
#endif

size_t entries(const char* path) {
  size_t count = 0;
  if (DIR* directory = ::opendir(path)) {
    while (::readdir(directory) != nullptr) ++count;
    ::closedir(directory);
  }
  return count;
}

struct Usage {
  size_t descriptors = entries("/proc/self/fd");
  size_t threads = entries("/proc/self/task");
  int64_t heap_bytes = 0;

  Usage() {
    const auto info = ::mallinfo2();
    heap_bytes = static_cast<int64_t>(info.uordblks) + static_cast<int64_t>(info.hblkhd);
  }
};

class Leak : public TransportSuite {
 protected:
  /// `work` a few times, then `rounds` times: usage stays, up to `heap_bytes`.
  template <class Work>
  static void expect_flat(int rounds, int64_t heap_bytes, Work work) {
    for (int i = 0; i < 50; ++i) work();
    const Usage before;
    for (int i = 0; i < rounds; ++i) work();
    EXPECT_TRUE(soon([&] {
      const Usage now;
      return now.descriptors <= before.descriptors + 4 && now.threads == before.threads;
    })) << Usage().descriptors
        << " descriptors, before " << before.descriptors;
    if (kSanitized) return;
    EXPECT_LE(Usage().heap_bytes, before.heap_bytes + heap_bytes);
  }
};
CEDAR_EACH_TRANSPORT(Leak);

TEST_P(Leak, ConnectAndClose) {
  open();
  auto third = network_.try_add(network_.options(3));
  ASSERT_TRUE(third.has_value());
  const int rounds = kSanitized ? 100 : 1000;
  expect_flat(rounds, 1 << 20, [&] {
    const auto peer = connect_to(**third, producer().listen_port());
    ASSERT_TRUE(peer.has_value()) << peer.error().message();
    (*third)->disconnect(peer->peer);
    ASSERT_TRUE(soon([&] { return (*third)->stats().connections == 0; }));
  });
  EXPECT_TRUE(soon([&] { return producer().stats().connections == 1; }));
}

TEST_P(Leak, WholeTransports) {
  open();
  expect_flat(kSanitized ? 10 : 40, 1 << 20, [&] {
    auto other = network_.try_add(network_.options(3));
    ASSERT_TRUE(other.has_value()) << other.error().message();
    ASSERT_TRUE((*other)->allocate(100'000).has_value());
    ASSERT_TRUE(connect_to(**other, producer().listen_port()).has_value());
  });
}

// Field reports B66, B71: registration leaves nothing behind.
TEST_P(Leak, RegisterAndUnregister) {
  open();
  std::vector<std::byte> memory(64 << 10);
  expect_flat(kSanitized ? 500 : 5000, 256 << 10, [&] {
    const auto region =
        producer().register_memory({memory.data(), memory.size(), MemoryKind::host, 0});
    ASSERT_TRUE(region.has_value());
    ASSERT_TRUE(producer().unregister(region->id).has_value());
  });
}

// Field report B68: transfers leave nothing behind.
TEST_P(Leak, TinyPulls) {
  open();
  uint64_t pulled = 0;
  expect_flat(kSanitized ? 20 : 200, 256 << 10, [&] {
    std::vector<Outcome> outcomes;
    for (int i = 0; i < 50; ++i) outcomes.push_back(pull(request(offer({{0, 64, {}}}))));
    for (const Outcome& outcome : outcomes) pulled += outcome.wait().has_value() ? 1 : 0;
    ASSERT_TRUE(soon([&] { return producer().stats().leases_live == 0; }));
    std::lock_guard lock(mutex_);
    lease_ends_.clear();
  });
  EXPECT_EQ(pulled % 50, 0u);
  EXPECT_TRUE(soon([&] { return consumer().stats().pulls_unfinished == 0; }));
}

}  // namespace
}  // namespace cedar::test
