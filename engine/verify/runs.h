#pragma once
// Comparisons of whole runs and single steps.

#include <string>
#include <vector>

#include "engine/verify/session.h"

namespace cedar::engine::verify {

/// The greedy choice: the lowest id among the largest logits.
TokenId best_token(const std::vector<float>& logits);

/// Values at recorded ids: `rows` of logits against tensors [rows.size(), m] of ids and values.
void check_top_values(Session& session, GoldenFile& file, const Kind& kind,
                      const std::string& ids_name, const std::string& values_name,
                      const std::vector<std::vector<float>>& rows);

/// Relative L2 over the reachable scores. Where only one side is -inf the comparison fails.
void check_scores(Report& report, const Kind& kind, const std::string& what,
                  std::vector<float> found, std::vector<float> expected);

/// The share of recorded list entries that are missing, rows left out whose differing entries score within two
/// bf16 steps of one another.
void check_share(Report& report, const Kind& kind, const std::string& what, const Lists& found,
                 const Lists& expected, const Scores& scores);
/// How the kept blocks of candidate pools [rows, columns] of one size differ, and the share of it as above.
ListDifference compare_pools(const std::vector<int64_t>& found,
                             const std::vector<int64_t>& expected, int64_t columns, int64_t block,
                             const Scores& scores);
void check_share(Report& report, const Kind& kind, const std::string& what,
                 const ListDifference& difference);
/// Both.
void check_pool_share(Report& report, const Kind& kind, const std::string& what,
                      const std::vector<int64_t>& found, const std::vector<int64_t>& expected,
                      int64_t columns, int64_t block, const Scores& scores);

}  // namespace cedar::engine::verify
