#include <cmath>
#include <memory>
#include <string>

#include "bench/kernels/cases.h"
#include "bench/kernels/paged_data.h"
#include "kernels/dense_attention.h"
#include "kernels/rope.h"
#include "kernels/sparse_attention.h"
#include "tests/reference/attention_reference.h"

namespace cedar::bench {
namespace {

constexpr int64_t kHeads = 64;
constexpr int64_t kHeadDim = 512;
constexpr int64_t kWindow = 128;

test::Row widened(const Bf16* x, int64_t count) {
  test::Row y;
  for (int64_t i = 0; i < count; ++i) y.push_back(static_cast<double>(static_cast<float>(x[i])));
  return y;
}

std::string compare(const char* what, const test::Row& got, const test::Row& want) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  const double error = std::sqrt(difference / norm);
  if (error < 5e-3) return {};
  return std::string(what) + ": relative error " + std::to_string(error);
}

/// Queries of one layer: a full window in the ring, and `k` chosen rows of `global_rows`.
struct SparseData {
  SparseData(int64_t rows, int64_t k, int64_t global_rows)
      : ring(kernels::RowFormat::q8, kWindow, kHeadDim, 1),
        global(kernels::RowFormat::q4n, global_rows, kHeadDim, 2),
        q(random_bf16(rows * kHeads * kHeadDim, 3)),
        o(q.size()),
        sink(static_cast<size_t>(kHeads), 0.5f),
        windows(static_cast<size_t>(rows), kernels::WindowSpan{0, 5000, 5000 + kWindow, 0, 0}),
        sequences(static_cast<size_t>(rows), 0),
        positions(static_cast<size_t>(rows), 5127),
        inv_freq(kernels::rope_inverse_frequencies(64, 160000, {16, 32, 1, 65536})) {
    Random random(4);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < k; ++i) {
        topk.push_back(static_cast<int32_t>(i * global_rows / k + random.below(global_rows / k)));
      }
    }
    params.q = q.data();
    params.sink = sink.data();
    params.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(kHeadDim)));
    params.window = windows.data();
    params.rings = {ring.bytes.data(), kWindow * ring.rows.row_bytes, ring.rows.row_bytes, kWindow};
    params.topk = k > 0 ? topk.data() : nullptr;
    params.k = k;
    params.global = global.rows;
    params.sequences = sequences.data();
    params.inv_freq = inv_freq.data();
    params.positions = positions.data();
    params.rotary_dim = 64;
    params.o = o.data();
    params.rows = rows;
    params.heads = kHeads;
    params.head_dim = kHeadDim;
  }

  /// The last query's last head.
  std::string verify() const {
    std::vector<test::Row> list;
    for (int64_t at = windows.back().ring_begin; at < windows.back().ring_end; ++at) {
      list.push_back(ring.row(at % kWindow, kHeadDim));
    }
    for (int64_t i = 0; i < params.k; ++i) {
      list.push_back(global.row(topk[topk.size() - static_cast<size_t>(params.k - i)], kHeadDim));
    }
    const auto last = static_cast<int64_t>(q.size()) - kHeadDim;
    const test::Row want =
        test::rotate_reference(test::attend_reference(widened(q.data() + last, kHeadDim), list,
                                                      list, static_cast<double>(params.scale), 0.5),
                               positions.back(), inv_freq, true);
    return compare("last head", widened(o.data() + last, kHeadDim), want);
  }

  PagedData ring, global;
  std::vector<Bf16> q, o;
  std::vector<float> sink;
  std::vector<kernels::WindowSpan> windows;
  std::vector<int32_t> topk, sequences;
  std::vector<int64_t> positions;
  std::vector<float> inv_freq;
  kernels::SparseAttentionParams params;
};

Case sparse_case(int64_t rows, int64_t k, int64_t global_rows, const std::string& shape) {
  return {"sparse_attention", shape,
          [rows, k, global_rows](kernels::KernelContext& ctx) -> Result<Prepared> {
            auto data = std::make_shared<SparseData>(rows, k, global_rows);
            Prepared prepared;
            prepared.run = [data, &ctx] { return kernels::sparse_attention(ctx, data->params); };
            prepared.verify = [data] { return data->verify(); };
            const double entries = static_cast<double>(kWindow + k);
            prepared.bytes = static_cast<double>(rows) *
                             (kWindow * 528 + static_cast<double>(k) * 288 + kHeads * kHeadDim * 4);
            prepared.flops = static_cast<double>(rows) * kHeads * entries * kHeadDim * 4;
            prepared.bound = Bound::bf16;
            return prepared;
          }};
}

Case dense_case(int64_t rows, int64_t heads, int64_t head_dim) {
  const std::string shape = "[" + std::to_string(rows) + " patches, " + std::to_string(heads) +
                            ", " + std::to_string(head_dim) + "]";
  return {"dense_attention", shape,
          [rows, heads, head_dim](kernels::KernelContext& ctx) -> Result<Prepared> {
            struct Data {
              std::vector<Bf16> qkv, o;
            };
            auto data = std::make_shared<Data>();
            data->qkv = random_bf16(rows * 3 * heads * head_dim, 5);
            data->o.resize(static_cast<size_t>(rows * heads * head_dim));
            const float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)));
            Prepared prepared;
            prepared.run = [=, &ctx] {
              return kernels::dense_attention(ctx, {.qkv = data->qkv.data(),
                                                    .scale = scale,
                                                    .o = data->o.data(),
                                                    .rows = rows,
                                                    .heads = heads,
                                                    .head_dim = head_dim});
            };
            prepared.verify = [=] {
              std::vector<test::Row> keys, values;
              const int64_t width = heads * head_dim;
              for (int64_t r = 0; r < rows; ++r) {
                keys.push_back(widened(data->qkv.data() + r * 3 * width + width, head_dim));
                values.push_back(widened(data->qkv.data() + r * 3 * width + 2 * width, head_dim));
              }
              const test::Row want =
                  test::attend_reference(widened(data->qkv.data(), head_dim), keys, values,
                                         static_cast<double>(scale), -1e30);
              return compare("first patch", widened(data->o.data(), head_dim), want);
            };
            prepared.bytes = static_cast<double>(data->qkv.size() * 2 + data->o.size() * 2);
            prepared.flops =
                static_cast<double>(rows) * static_cast<double>(rows * heads * head_dim) * 4;
            prepared.bound = Bound::bf16;
            return prepared;
          }};
}

}  // namespace

std::vector<Case> attention_cases() {
  return {
      sparse_case(1, 0, 64, "64 heads, 1 query, window 128"),
      sparse_case(1, 512, 8192, "64 heads, 1 query, window 128 + 512 of 8192"),
      sparse_case(1, 512, 524288, "64 heads, 1 query, window 128 + 512 of 524288"),
      sparse_case(32, 512, 8192, "64 heads, 32 queries, window 128 + 512 of 8192"),
      dense_case(1521, 16, 64),
  };
}

}  // namespace cedar::bench
