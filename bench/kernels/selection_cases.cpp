#include <cmath>
#include <memory>
#include <string>

#include "bench/kernels/cases.h"
#include "bench/kernels/paged_data.h"
#include "kernels/index_score.h"
#include "kernels/topk.h"
#include "tests/reference/attention_reference.h"

namespace cedar::bench {
namespace {

constexpr int64_t kHeads = 32;
constexpr int64_t kColumns = 128;
constexpr int64_t kTopk = 512;
constexpr int64_t kCandidateBlock = 8;
constexpr int64_t kCandidateBlocks = 2048;

struct IndexData {
  IndexData(int64_t rows, int64_t key_count, kernels::IndexScoreMode mode, bool pool)
      : keys(kernels::RowFormat::q4x, key_count, kColumns, 1),
        queries(kernels::RowFormat::q4x, rows * kHeads, kColumns, 2),
        weights(random_bf16(rows * kHeads, 3)),
        sequences(static_cast<size_t>(rows), 0),
        visible(static_cast<size_t>(rows), key_count),
        scores(static_cast<size_t>(rows * key_count)) {
    if (pool) {
      mask.resize(static_cast<size_t>(rows * key_count / 32), 0);
      Random random(4);
      for (int64_t i = 0; i < kCandidateBlocks; ++i) {
        const int64_t block = random.below(key_count / kCandidateBlock);
        mask[static_cast<size_t>(block / 4)] |= 0xffu << (block % 4 * kCandidateBlock);
      }
    }
    params.q = queries.bytes.data();
    params.head_weights = weights.data();
    params.head_weight_scale = 1.0f / 64;
    params.keys = keys.rows;
    params.sequences = sequences.data();
    params.visible = visible.data();
    params.mask = pool ? mask.data() : nullptr;
    params.mask_stride = key_count / 32;
    params.scores = scores.data();
    params.score_stride = key_count;
    params.rows = rows;
    params.heads = kHeads;
    params.columns = kColumns;
    params.mode = mode;
  }

  /// Some keys of the first row.
  std::string verify() const {
    std::vector<test::Row> q;
    test::Row w;
    for (int64_t h = 0; h < kHeads; ++h) {
      q.push_back(queries.row(h, kColumns));
      w.push_back(static_cast<double>(static_cast<float>(weights[static_cast<size_t>(h)])) / 64);
    }
    for (int64_t j = 0; j < params.score_stride; j += params.score_stride / 16 - 1) {
      const float got = scores[static_cast<size_t>(j)];
      const bool chosen = mask.empty() || (mask[static_cast<size_t>(j / 32)] >> (j % 32) & 1) != 0;
      if (!chosen) {
        if (std::isfinite(got))
          return "key " + std::to_string(j) + " is not in the pool but scored";
        continue;
      }
      const bool round = params.mode == kernels::IndexScoreMode::bf16;
      const double want = test::index_score_reference(q, w, keys.row(j, kColumns), round);
      if (!(std::abs(static_cast<double>(got) - want) <=
            (round ? 1e-2 : 1e-4) * (1 + std::abs(want)))) {
        return "key " + std::to_string(j) + " scores " + std::to_string(got) + ", not " +
               std::to_string(want);
      }
    }
    return {};
  }

  PagedData keys, queries;
  std::vector<Bf16> weights;
  std::vector<int32_t> sequences;
  std::vector<int64_t> visible;
  std::vector<uint32_t> mask;
  std::vector<float> scores;
  kernels::IndexScoreParams params;
};

Case index_case(int64_t rows, int64_t keys, kernels::IndexScoreMode mode, bool pool) {
  const bool rounds = mode == kernels::IndexScoreMode::bf16;
  const std::string shape = std::string(rounds ? "bf16" : "fp32") + ", 32 heads x 128, " +
                            std::to_string(rows) + " x " + std::to_string(keys) +
                            (pool ? " keys, pool of 2048 blocks" : " keys");
  return {"index_score", shape, [=](kernels::KernelContext& ctx) -> Result<Prepared> {
            auto data = std::make_shared<IndexData>(rows, keys, mode, pool);
            Prepared prepared;
            prepared.run = [data, &ctx] { return kernels::index_score(ctx, data->params); };
            prepared.verify = [data] { return data->verify(); };
            const double scored =
                static_cast<double>(pool ? kCandidateBlocks * kCandidateBlock : keys);
            prepared.bytes = scored * 68 + static_cast<double>(rows * keys) * 4;
            // The products run on byte dot products, which on AVX-512 do twice the work of a bf16
            // one: a multiply-add counts as one operation here, not as two, so that the bf16
            // ceiling is theirs.
            prepared.flops = static_cast<double>(rows) * scored * kHeads * kColumns;
            prepared.bound = Bound::bf16;
            return prepared;
          }};
}

struct SelectData {
  std::vector<float> scores;
  std::vector<int32_t> indices;
  std::vector<int64_t> visible;
  std::vector<uint32_t> mask;
};

std::shared_ptr<SelectData> select_data(int64_t columns, bool rounded) {
  auto data = std::make_shared<SelectData>();
  Random random(5);
  for (int64_t c = 0; c < columns; ++c) {
    const float score = random.normal();
    data->scores.push_back(rounded ? round_to_bf16(score) : score);
  }
  data->indices.resize(static_cast<size_t>(kTopk));
  data->visible = {columns};
  data->mask.resize(static_cast<size_t>((columns + 31) / 32));
  return data;
}

Case topk_case(int64_t columns, bool rounded) {
  const std::string shape =
      "512 of " + std::to_string(columns) + (rounded ? " scores with ties" : " scores");
  return {"topk", shape, [=](kernels::KernelContext& ctx) -> Result<Prepared> {
            auto data = select_data(columns, rounded);
            Prepared prepared;
            prepared.run = [=, &ctx] {
              kernels::TopkParams p;
              p.scores = data->scores.data();
              p.score_stride = p.columns = columns;
              p.indices = data->indices.data();
              p.rows = 1;
              p.k = kTopk;
              return kernels::topk(ctx, p);
            };
            prepared.verify = [data]() -> std::string {
              if (data->indices == test::topk_reference(data->scores, kTopk)) return {};
              return "another choice than the reference's";
            };
            prepared.bytes = static_cast<double>(columns) * 4;
            return prepared;
          }};
}

Case candidates_case(int64_t columns) {
  return {"candidates", "2048 blocks of 8 of " + std::to_string(columns) + " scores",
          [=](kernels::KernelContext& ctx) -> Result<Prepared> {
            auto data = select_data(columns, false);
            Prepared prepared;
            prepared.run = [=, &ctx] {
              kernels::CandidateBlocksParams p;
              p.scores = data->scores.data();
              p.score_stride = p.columns = columns;
              p.visible = data->visible.data();
              p.mask = data->mask.data();
              p.mask_stride = static_cast<int64_t>(data->mask.size());
              p.rows = 1;
              p.block = kCandidateBlock;
              p.keep = kCandidateBlocks;
              return kernels::candidate_blocks(ctx, p);
            };
            prepared.verify = [=]() -> std::string {
              const auto want = test::candidates_reference(data->scores, columns, kCandidateBlock,
                                                           kCandidateBlocks);
              for (int64_t c = 0; c < columns; ++c) {
                const bool got = (data->mask[static_cast<size_t>(c / 32)] >> (c % 32) & 1) != 0;
                if (got != want[static_cast<size_t>(c)])
                  return "column " + std::to_string(c) + " differs";
              }
              return {};
            };
            prepared.bytes = static_cast<double>(columns) * (4 + 1.0 / 8);
            return prepared;
          }};
}

}  // namespace

std::vector<Case> selection_cases() {
  using kernels::IndexScoreMode;
  return {
      index_case(1, 16384, IndexScoreMode::fp32, false),
      index_case(1, 16384, IndexScoreMode::bf16, false),
      index_case(1, 1048576, IndexScoreMode::fp32, false),
      index_case(1, 1048576, IndexScoreMode::fp32, true),
      index_case(64, 16384, IndexScoreMode::fp32, false),
      topk_case(16384, false),
      topk_case(1048576, false),
      topk_case(1048576, true),
      candidates_case(1048576),
  };
}

}  // namespace cedar::bench
