#include "kernels/sparse_attention.h"

#include <array>
#include <limits>

#include "kernels/cpu/row_context.h"
#include "kernels/rope.h"
#include "tests/reference/attention_reference.h"
#include "tests/support/paged_store.h"
#include "tests/support/safetensors_lite.h"

namespace cedar::kernels {
namespace {

struct Shape {
  int64_t heads, head_dim, rotary;
};

/// One query: its window and its global list.
struct Query {
  WindowSpan window;
  std::vector<int32_t> topk;
  int32_t sequence = 0;
  int64_t position = 0;
};

constexpr int64_t kWindow = 128;
constexpr int64_t kSlots = 2;
constexpr int64_t kChunkRows = 40;
constexpr int64_t kGlobalRows = 700;

class SparseAttention : public test::EachBackend {
 protected:
  struct Outcome {
    std::vector<Bf16> o;
    std::vector<double> want;
  };

  /// Runs `queries` on `ctx` against random caches, and the reference on the same numbers.
  Outcome run(KernelContext& context, const Shape& shape, const std::vector<Query>& queries,
              int64_t k, bool rotate_back, bool with_reference = true) {
    const int64_t bytes = packed_row_bytes(RowFormat::q8, shape.head_dim);
    const auto packed = [&](int64_t rows, uint32_t seed) {
      const auto x = test::random_bf16(rows * shape.head_dim, seed);
      std::vector<uint8_t> out(static_cast<size_t>(rows * bytes));
      for (int64_t i = 0; i < rows; ++i) {
        quantize_row(RowFormat::q8, x.data() + i * shape.head_dim, shape.head_dim,
                     out.data() + i * bytes);
      }
      return out;
    };
    const auto ring_rows = packed(kSlots * kWindow, 51), chunk_rows = packed(kChunkRows, 52);
    test::PagedStore global(device(), RowFormat::q4n, 2, kGlobalRows, shape.head_dim, 64, 53);
    const auto rows = static_cast<int64_t>(queries.size());
    // Seeds by position: a query has the same q whichever others are in the batch.
    std::vector<Bf16> q;
    for (const Query& query : queries) {
      const auto x = test::random_bf16(shape.heads * shape.head_dim,
                                       static_cast<uint32_t>(100 + query.position));
      q.insert(q.end(), x.begin(), x.end());
    }
    const auto sink = test::random_f32(shape.heads, 54);
    const auto inv_freq = rope_inverse_frequencies(shape.rotary, 160000, {16, 32, 1, 65536});
    std::vector<WindowSpan> windows;
    std::vector<int32_t> lists, sequences;
    std::vector<int64_t> positions;
    for (const Query& query : queries) {
      windows.push_back(query.window);
      lists.insert(lists.end(), query.topk.begin(), query.topk.end());
      sequences.push_back(query.sequence);
      positions.push_back(query.position);
    }
    auto d_ring = upload(ring_rows), d_chunk = upload(chunk_rows);
    auto d_q = upload(q);
    auto d_sink = upload(sink), d_freq = upload(inv_freq);
    auto d_windows = upload(windows);
    auto d_lists = upload(lists), d_sequences = upload(sequences);
    auto d_positions = upload(positions);
    auto o = reserve<Bf16>(rows * shape.heads * shape.head_dim, Bf16(99.0f));
    SparseAttentionParams p;
    p.q = d_q.data();
    p.sink = d_sink.data();
    p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
    p.window = d_windows.data();
    p.rings = {.base = d_ring.data(),
               .slot_stride_bytes = kWindow * bytes,
               .row_bytes = bytes,
               .window = kWindow};
    p.chunk_rows = d_chunk.data();
    p.topk = k > 0 ? d_lists.data() : nullptr;
    p.k = k;
    p.global = global.rows();
    p.sequences = d_sequences.data();
    if (rotate_back) p.inv_freq = d_freq.data();
    p.positions = d_positions.data();
    p.rotary_dim = shape.rotary;
    p.o = o.data();
    p.rows = rows;
    p.heads = shape.heads;
    p.head_dim = shape.head_dim;
    test::expect_ok(sparse_attention(context, p));

    Outcome out{o.host(), {}};
    if (!with_reference) return out;
    const auto row_of = [&](const std::vector<uint8_t>& all, int64_t i) {
      std::vector<Bf16> x(static_cast<size_t>(shape.head_dim));
      dequantize_row(RowFormat::q8, all.data() + i * bytes, shape.head_dim, x.data());
      return test::widened(x);
    };
    for (size_t r = 0; r < queries.size(); ++r) {
      const WindowSpan& w = queries[r].window;
      std::vector<test::Row> list;
      for (int64_t at = w.ring_begin; at < w.ring_end; ++at) {
        list.push_back(row_of(ring_rows, w.slot * kWindow + at % kWindow));
      }
      for (int64_t i = w.chunk_begin; i < w.chunk_end; ++i) list.push_back(row_of(chunk_rows, i));
      for (const int32_t j : queries[r].topk) {
        if (j >= 0) list.push_back(global.row(queries[r].sequence, j));
      }
      for (int64_t h = 0; h < shape.heads; ++h) {
        const auto at = (r * static_cast<size_t>(shape.heads) + static_cast<size_t>(h)) *
                        static_cast<size_t>(shape.head_dim);
        const auto head =
            test::widened(std::span(q).subspan(at, static_cast<size_t>(shape.head_dim)));
        test::Row want = test::attend_reference(head, list, list, static_cast<double>(p.scale),
                                                static_cast<double>(sink[static_cast<size_t>(h)]));
        if (rotate_back) {
          for (double& x : want) x = test::round_bf16(x);
          want = test::rotate_reference(want, queries[r].position, inv_freq, true);
        }
        out.want.insert(out.want.end(), want.begin(), want.end());
      }
    }
    return out;
  }
  Outcome run(const Shape& shape, const std::vector<Query>& queries, int64_t k, bool rotate_back) {
    return run(ctx(), shape, queries, k, rotate_back);
  }
};

std::vector<int32_t> every(int32_t step, size_t count, size_t k) {
  std::vector<int32_t> list;
  for (size_t i = 0; i < count; ++i) list.push_back(static_cast<int32_t>(i) * step);
  list.resize(k, -1);
  return list;
}

// Window from ring and chunk (wrapping around the ring), lists that cross pages, are empty, or are
// all -1.
std::vector<Query> mixed_queries() {
  return {
      {{0, 100, 200, 0, 28}, every(3, 200, 200), 0, 227},
      {{1, 0, 0, 3, 4}, every(1, 0, 200), 1, 0},
      {{1, 0, 1, 0, 0}, every(5, 140, 200), 1, 1},
      {{0, 250, 300, 0, 0}, every(1, 64, 200), 0, 300},
      {{0, 0, 0, 0, 0}, every(2, 3, 200), 0, 77},
  };
}

TEST_P(SparseAttention, FollowsTheFormula) {
  for (const Shape shape : {Shape{6, 96, 24}, {3, 128, 32}, {64, 512, 64}, {9, 32, 8}}) {
    for (const bool rotate_back : {false, true}) {
      const Outcome out = run(shape, mixed_queries(), 200, rotate_back);
      // Two roundings to bf16 (2^-9 each) against one.
      EXPECT_LT(test::relative_l2(std::span<const Bf16>(out.o), std::span<const double>(out.want)),
                3.5e-3)
          << shape.head_dim;
      EXPECT_LT(test::worst_error(std::span<const Bf16>(out.o), std::span<const double>(out.want)),
                8e-3)
          << shape.head_dim;
    }
  }
}

TEST_P(SparseAttention, FullLists) {
  for (const int64_t heads : {8, 64}) {
    const Outcome out =
        run({heads, 512, 64}, {{{0, 300, 420, 0, 8}, every(1, 512, 512), 1, 427}}, 512, true);
    EXPECT_LT(test::relative_l2(std::span<const Bf16>(out.o), std::span<const double>(out.want)),
              3.5e-3);
  }
}

TEST_P(SparseAttention, WindowAlone) {
  const Outcome out = run(
      {4, 96, 24}, {{{0, 130, 257, 5, 6}, {}, 0, 257}, {{1, 10, 12, 0, 40}, {}, 0, 51}}, 0, true);
  EXPECT_LT(test::relative_l2(std::span<const Bf16>(out.o), std::span<const double>(out.want)),
            3.5e-3);
}

TEST_P(SparseAttention, NothingToAttendGivesZeros) {
  for (const Bf16 x : run({5, 96, 24}, {{{0, 7, 7, 2, 2}, every(1, 0, 70), 0, 3}}, 70, true).o) {
    ASSERT_EQ(static_cast<float>(x), 0.0f);
  }
}

TEST_P(SparseAttention, UnsetEntriesLeaveNoTrace) {
  // The same list with and without -1 between and after its entries.
  const std::vector<int32_t> dense = every(3, 70, 70);
  std::vector<int32_t> sparse;
  for (const int32_t j : dense) sparse.insert(sparse.end(), {-1, j, -1});
  const Shape shape{6, 96, 24};
  const auto a = run(ctx(), shape, {{{0, 5, 9, 0, 0}, dense, 0, 9}}, 70, false, false).o;
  const auto b = run(ctx(), shape, {{{0, 5, 9, 0, 0}, sparse, 0, 9}}, 210, false, false).o;
  EXPECT_EQ(test::bits_of(a), test::bits_of(b));
}

TEST_P(SparseAttention, BatchThreadsAndInstructionSetDoNotMatter) {
  for (const Shape shape : {Shape{33, 96, 24}, {64, 512, 64}}) {
    const auto queries = mixed_queries();
    const auto together = run(ctx(), shape, queries, 200, true, false).o;
    if (!test::on_cuda(GetParam())) {
      test::BackendContext portable(test::all_backends().front(), 1);
      EXPECT_EQ(test::bits_of(together),
                test::bits_of(run(*portable, shape, queries, 200, true, false).o));
    }
    // Alone and with five threads, a query's heads are split.
    test::BackendContext many(GetParam(), 5);
    for (size_t r = 0; r < queries.size(); ++r) {
      const auto alone = run(*many, shape, {queries[r]}, 200, true, false).o;
      const auto begin = together.begin() + static_cast<int64_t>(r * alone.size());
      ASSERT_EQ(test::bits_of(alone),
                test::bits_of({begin, begin + static_cast<int64_t>(alone.size())}))
          << r;
    }
  }
}

TEST_P(SparseAttention, EqualsTheReferenceProgram) {
  // The recorded keys are plain bf16, so this enters below the packed rows: the same blocks and
  // softmax.
  const auto units = test::SafetensorsLite::open(std::string(CEDAR_SOURCE_DIR) +
                                                 "/tests/golden/units.safetensors");
  const auto q = units.at("sparse_attn.q").as<uint16_t>();
  const auto kv = units.at("sparse_attn.kv").as<uint16_t>();
  const auto sink = units.at("sparse_attn.sink").as<float>();
  const auto lists = units.at("sparse_attn.idxs").as<int32_t>();
  const auto want = units.at("sparse_attn.out").as<Bf16>();
  const auto& shape = units.at("sparse_attn.q").shape;
  const int64_t rows = shape[1], heads = shape[2], head_dim = shape[3];
  const int64_t k = units.at("sparse_attn.idxs").shape[2];
  std::vector<Bf16> o(want.size());
  std::vector<uint8_t> scratch(static_cast<size_t>(cpu::attention_scratch_bytes(heads, head_dim)) +
                               64);
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<uint16_t> keys;
    for (int64_t i = 0; i < k; ++i) {
      const int32_t j = lists[static_cast<size_t>(r * k + i)];
      if (j < 0) continue;
      const auto begin = kv.begin() + j * head_dim;
      keys.insert(keys.end(), begin, begin + head_dim);
    }
    if (keys.empty()) continue;
    cpu::AttendDense p;
    p.q = q.data() + r * heads * head_dim;
    p.k = p.v = keys.data();
    p.stride = p.o_stride = p.head_dim = head_dim;
    p.sink = sink.data();
    p.queries = heads;
    p.keys = static_cast<int64_t>(keys.size()) / head_dim;
    p.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
    p.o = cpu::raw(o.data() + r * heads * head_dim);
    p.scratch = scratch.data();
    cpu::row_kernels(ctx()).attend_dense(p);
  }
  EXPECT_LT(test::relative_l2(std::span<const Bf16>(o), want), 4e-3);
  // Two steps of each element, or of the largest one's neighbourhood for elements that nearly
  // cancel.
  double largest = 0;
  for (const Bf16 x : want) largest = std::max(largest, std::abs(test::as_double(x)));
  for (size_t i = 0; i < o.size(); ++i) {
    if (test::bf16_steps(o[i], want[i]) <= 2) continue;
    ASSERT_NEAR(test::as_double(o[i]), test::as_double(want[i]), largest / 1024) << i;
  }
}

TEST_P(SparseAttention, RefusesWrongShapes) {
  Bf16 x;
  float f = 0;
  WindowSpan w;
  SparseAttentionParams p;
  p.q = &x;
  p.o = &x;
  p.sink = &f;
  p.window = &w;
  p.rows = p.heads = 1;
  p.head_dim = 48;
  test::expect_invalid(sparse_attention(ctx(), p), "head_dim", "48");
  p.head_dim = 64;
  const int32_t list = 3, sequence = 0;
  p.topk = &list;
  p.sequences = &sequence;
  p.k = 1;
  test::expect_invalid(sparse_attention(ctx(), p), "global.base", "null");
}

CEDAR_EACH_BACKEND(SparseAttention);

}  // namespace
}  // namespace cedar::kernels
