#pragma once
// Lists and pools: made from given scores by the kernels, and compared.

#include <string>
#include <vector>

#include "engine/verify/session.h"

namespace cedar::engine::verify {

/// Top-k of dense scores [rows, columns] inside a pool [rows, words] (empty: no pool).
Result<Lists> topk_of(kernels::KernelContext& ctx, const float* scores, int64_t rows,
                      int64_t columns, int64_t k, const std::vector<uint32_t>& pool);
/// The candidate pool of dense scores [rows, columns], one row for each entry of `visible`.
Result<std::vector<uint32_t>> pool_of(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                      const float* scores, const std::vector<int64_t>& visible,
                                      int64_t columns);
/// One byte a column, [rows, columns], to bit words.
std::vector<uint32_t> pool_words(const std::vector<int64_t>& allowed, int64_t columns);
/// Global rows of ratio `ratio` that positions 0 .. rows - 1 see.
std::vector<int64_t> visible_rows(int64_t rows, int64_t ratio);

/// Equal lists, or differences among scores within `steps` bf16 steps, which are noted.
void check_lists(Report& report, const Kind& kind, const std::string& what, const Lists& found,
                 const Lists& expected, const Scores& scores, double steps);

/// Kept blocks of every row of a pool [rows, columns], and every block's best score.
Lists block_lists(const std::vector<int64_t>& pool, int64_t rows, int64_t columns, int64_t block);
std::vector<float> block_scores(const Scores& scores, int64_t rows, int64_t columns, int64_t block);

/// Candidate pools as one byte a column, [rows, columns]. Equal, or kept blocks that differ among block scores
/// within `steps` bf16 steps, which are noted.
void check_pools(Report& report, const Kind& kind, const std::string& what,
                 const std::vector<int64_t>& found, const std::vector<int64_t>& expected,
                 int64_t columns, int64_t block, const Scores& scores, double steps);
/// Every pool that one row's scores allow when several blocks tie for the last places (the first: lower
/// blocks first), at most kMostPools.
constexpr size_t kMostPools = 64;
std::vector<std::vector<uint32_t>> allowed_pools(const model::ModelConfig& config,
                                                 const float* scores, int64_t columns);

/// What the forward pass looks up for tokens at positions 0, 1 ...: [tokens, Engram layers, columns].
Result<std::vector<int64_t>> engram_row_ids(Session& session, const std::vector<TokenId>& tokens);

}  // namespace cedar::engine::verify
