#pragma once
// Sampling for a step's rows. On a GPU the logits stay there: it sends each row's best candidates and sums, from
// which the host draws the very token that sample() draws from the whole row. Where a sum's rounding, or an entry
// that was not sent, could matter, the whole row is fetched instead.

#include <span>
#include <vector>

#include "engine/sampling.h"
#include "kernels/kernel_context.h"

namespace cedar::engine {

/// The arguments of sample() besides the logits; borrowed.
struct SamplingJob {
  const SamplingParams* params = nullptr;
  std::span<const TokenId> prompt, output, stop_ids;
  const structured::TokenMask* allowed = nullptr;
};

struct SampledRows {
  std::vector<Result<SampledToken>> tokens;  // one a job
  int64_t whole_rows = 0;                    // rows that were sampled from all their logits
};

/// `logits` [jobs, vocab], memory of the context's device.
Result<SampledRows> sample_rows(kernels::KernelContext& ctx, const float* logits, int64_t vocab,
                                std::span<const SamplingJob> jobs);
/// The same tokens by way of candidates, on any device.
Result<SampledRows> sample_candidates(kernels::KernelContext& ctx, const float* logits,
                                      int64_t vocab, std::span<const SamplingJob> jobs);

}  // namespace cedar::engine
