// How long a full scan of a long context takes when its index keys are spread: shapes of the release, random keys, every shard
// alone on one thread as on a node of its own, and the union of the answers. Equality with one scan is checked first.

#include <ctime>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/arena.h"
#include "core/check.h"
#include "core/thread_pool.h"
#include "core/units.h"
#include "engine/index_key_store.h"
#include "engine/index_scan.h"

namespace cedar::bench {
namespace {

using engine::IndexFind;
using engine::IndexFindings;
using Clock = std::chrono::steady_clock;

constexpr int64_t kHeads = 32, kColumns = 128, kRowBytes = 68, kRowsPerBlock = 128;
constexpr int64_t kBest = 512, kCandidateBlock = 8, kCandidateKeep = 2048;

/// Codes are random; scales are near one.
std::vector<uint8_t> random_rows(int64_t rows, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * kRowBytes));
  for (int64_t r = 0; r < rows; ++r) {
    uint8_t* row = bytes.data() + r * kRowBytes;
    for (int64_t i = 0; i < kColumns / 2; ++i) row[i] = static_cast<uint8_t>(random());
    for (int64_t i = kColumns / 2; i < kRowBytes; ++i) {
      row[i] = static_cast<uint8_t>(125 + random() % 5);
    }
  }
  return bytes;
}

struct Shard {
  engine::IndexKeyStore store;
  int64_t blocks = 0;
};

std::vector<Shard> spread(const std::vector<uint8_t>& keys, int64_t shards) {
  const engine::IndexBlockLayout layout{{{0, kRowsPerBlock}}, kRowBytes};
  const auto end = Clock::now() + std::chrono::hours(1);
  const auto bytes = static_cast<size_t>(layout.bytes());
  std::vector<Shard> out;
  for (int64_t s = 0; s < shards; ++s) {
    auto store = engine::IndexKeyStore::create(
        align_up(static_cast<int64_t>(keys.size()) / shards * 2, 64_KiB));
    CEDAR_ASSERT(store.has_value(), "memory");
    CEDAR_ASSERT(store->open({1, 1}, layout, end).has_value(), "open");
    out.push_back({std::move(*store), 0});
  }
  for (size_t b = 0; b < keys.size() / bytes; ++b) {
    Shard& shard = out[b % out.size()];
    const auto block = static_cast<int32_t>(b);
    const Status taken = shard.store.append(
        {1, 1}, shard.blocks++, {&block, 1},
        std::as_bytes(std::span<const uint8_t>(keys)).subspan(b * bytes, bytes), end);
    CEDAR_ASSERT(taken.has_value(), taken ? std::string() : taken.error().message());
  }
  return out;
}

struct Measured {
  double slowest_ms = 0, merge_ms = 0;
  std::vector<int32_t> indices;
  std::vector<uint32_t> mask;
};

/// CPU time of this thread, which does all of it: other programs on the machine do not count.
double now_ms() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Measured measure(kernels::KernelContext& ctx, const engine::IndexQuestions& questions,
                 std::vector<Shard>& shards, int64_t columns, int repeats) {
  const auto end = Clock::now() + std::chrono::hours(1);
  Measured out;
  std::vector<IndexFindings> found;
  for (Shard& shard : shards) {
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      ctx.arena->reset();
      const engine::IndexPartRows rows{{1, 1}, shard.blocks, questions.rows};
      const double begin = now_ms();
      auto findings = shard.store.scan(ctx, questions, {&rows, 1}, end);
      times.push_back(now_ms() - begin);
      CEDAR_ASSERT(findings.has_value(), findings ? std::string() : findings.error().message());
      if (i == 0) found.push_back(std::move(*findings));
    }
    out.slowest_ms = std::max(out.slowest_ms, median(times));
  }
  const int64_t words = ceil_div(columns, 32);
  out.indices.resize(static_cast<size_t>(questions.rows * kBest));
  out.mask.resize(static_cast<size_t>(questions.rows * words));
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const double begin = now_ms();
    std::vector<IndexFind> all;
    for (int64_t row = 0; row < questions.rows; ++row) {
      all.clear();
      for (const IndexFindings& part : found) {
        const auto best = part.best_of(row);
        all.insert(all.end(), best.begin(), best.end());
      }
      engine::write_best(all, kBest, out.indices.data() + row * kBest);
      all.clear();
      for (const IndexFindings& part : found) {
        const auto blocks = part.blocks_of(row);
        all.insert(all.end(), blocks.begin(), blocks.end());
      }
      engine::write_candidates(all, questions.visible[row], columns, kCandidateBlock,
                               kCandidateKeep, out.mask.data() + row * words, words);
    }
    times.push_back(now_ms() - begin);
  }
  out.merge_ms = median(times);
  return out;
}

int run(int64_t keys, int repeats) {
  const std::vector<uint8_t> key_bytes = random_rows(keys, 1);
  ThreadPool pool(1);
  Arena arena{Device{}};
  kernels::KernelContext ctx;
  ctx.pool = &pool;
  ctx.arena = &arena;
  std::printf(
      "%lld index keys of %lld bytes, %lld heads of %lld columns, best %lld, %lld candidate "
      "blocks; one thread a "
      "shard, CPU time, median of %d\n",
      static_cast<long long>(keys), static_cast<long long>(kRowBytes),
      static_cast<long long>(kHeads), static_cast<long long>(kColumns),
      static_cast<long long>(kBest), static_cast<long long>(kCandidateKeep), repeats);
  std::printf("%5s %7s %16s %10s %16s\n", "rows", "shards", "slowest shard/ms", "union/ms",
              "against 1 shard");
  for (const int64_t rows : {1, 8}) {
    const std::vector<uint8_t> packed = random_rows(rows * kHeads, 2);
    std::vector<Bf16> weights(static_cast<size_t>(rows * kHeads), Bf16(0.75F));
    const std::vector<int64_t> visible(static_cast<size_t>(rows), keys - 3);
    engine::IndexQuestions questions;
    questions.packed = packed.data();
    questions.head_weights = weights.data();
    questions.visible = visible.data();
    questions.rows = rows;
    questions.heads = kHeads;
    questions.columns = kColumns;
    questions.head_weight_scale = 1.0F / 64;
    questions.best = kBest;
    questions.candidate_block = kCandidateBlock;
    questions.candidate_keep = kCandidateKeep;
    Measured one;
    for (const int64_t count : {1, 2, 4}) {
      std::vector<Shard> shards = spread(key_bytes, count);
      const Measured got = measure(ctx, questions, shards, keys, repeats);
      if (count == 1) one = got;
      if (got.indices != one.indices || got.mask != one.mask) {
        std::fprintf(stderr, "%lld shards select other rows than one\n",
                     static_cast<long long>(count));
        return 1;
      }
      std::printf("%5lld %7lld %16.2f %10.3f %15.2fx\n", static_cast<long long>(rows),
                  static_cast<long long>(count), got.slowest_ms, got.merge_ms,
                  (one.slowest_ms + one.merge_ms) / (got.slowest_ms + got.merge_ms));
    }
  }
  return 0;
}

}  // namespace
}  // namespace cedar::bench

int main(int argc, char** argv) {
  const int64_t keys = argc > 1 ? std::atoll(argv[1]) : int64_t{1} << 20;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 9;
  if (keys < 1024 || keys % 128 != 0 || repeats < 1) {
    std::fprintf(stderr, "bench_index_shards [KEYS [REPEATS]]: a multiple of 128, 1024 at least\n");
    return 2;
  }
  return cedar::bench::run(keys, repeats);
}
