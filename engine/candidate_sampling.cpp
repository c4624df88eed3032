#include "engine/candidate_sampling.h"

#include <cstring>
#include <optional>
#include <unordered_map>

#include "engine/sampling_rules.h"
#include "engine/upload.h"
#include "kernels/logit_candidates.h"

namespace cedar::engine {
namespace {

using kernels::DrawKind;
using kernels::DrawRow;
using kernels::DrawStats;
using kernels::LogitCandidate;
using kernels::LogitEdit;
using Sampled = Result<SampledToken>;
using Candidates = std::span<const LogitCandidate>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Candidates of a row: with noise alone, the best few nearly always decide; top-p takes as many as its mass needs.
constexpr int64_t kFew = 16, kMany = 512, kRawBest = 64;
// By how much a device's sum of exponentials may differ from the host's, relatively, and a noisy value: both are
// far larger than what rounding can do.
constexpr double kSumTolerance = 1e-10;
constexpr float kNoiseTolerance = 1e-4F;

DrawKind kind_of(const SamplingParams& params) {
  if (is_greedy(params)) return DrawKind::best;
  return filters(params) ? DrawKind::ranked : DrawKind::noisy;
}

/// Nothing when a row's edits cannot be told one token at a time.
std::optional<std::vector<LogitEdit>> edits_of(const SamplingJob& job) {
  const SamplingParams& params = *job.params;
  std::unordered_map<TokenId, LogitEdit> edits;
  const auto edit = [&](TokenId id) -> LogitEdit& {
    LogitEdit& found = edits[id];
    found.token = id;
    return found;
  };
  if (masks_stops(params, job.output.size(), job.stop_ids, job.allowed)) {
    for (const TokenId id : job.stop_ids) edit(id).rules |= LogitEdit::kNever;
  }
  std::vector<TokenId> biased;
  for (const auto& [id, bias] : params.logit_bias) {
    edit(id).bias = bias;
    biased.push_back(id);
  }
  std::sort(biased.begin(), biased.end());
  if (std::adjacent_find(biased.begin(), biased.end()) != biased.end()) return std::nullopt;
  if (params.repetition_penalty != 1.0F) {
    for (const auto history : {job.prompt, job.output}) {
      for (const TokenId id : history) edit(id).rules |= LogitEdit::kSeen;
    }
  }
  if (params.frequency_penalty != 0 || params.presence_penalty != 0) {
    for (const TokenId id : job.output) {
      LogitEdit& counted = edit(id);
      counted.rules |= LogitEdit::kCounted;
      ++counted.count;
    }
  }
  std::vector<LogitEdit> out;
  out.reserve(edits.size());
  for (const auto& [id, one] : edits) out.push_back(one);
  return out;
}

/// Whether float(log(sum)) is the same for every sum within the tolerance.
bool log_is_certain(double sum) {
  if (!(sum > 0) || !std::isfinite(sum)) return false;
  const double log = std::log(sum);
  const double slack = 2 * kSumTolerance + 1e-14 * std::abs(log);
  return static_cast<float>(log - slack) == static_cast<float>(log + slack);
}

/// The entries of a list that hold, sorted as sample() sorts them: value - normaliser, then token.
struct Ranked {
  std::vector<TokenLogprob> sorted;
  float lowest = kInfinity;  // least value listed
  bool complete = false;     // every entry above minus infinity is listed

  Ranked(Candidates list, float normaliser) {
    for (const LogitCandidate& c : list) {
      if (c.token < 0) {
        complete = true;
        continue;
      }
      sorted.push_back({c.token, c.value - normaliser});
      lowest = std::min(lowest, c.value);
    }
    std::sort(sorted.begin(), sorted.end(), better);
  }
  /// How many of the first entries come before everything that is not listed.
  size_t certain(float normaliser) const {
    if (complete) return sorted.size();
    const float bound = lowest - normaliser;
    return static_cast<size_t>(
        std::find_if(sorted.begin(), sorted.end(),
                     [&](const TokenLogprob& t) { return !(t.logprob > bound); }) -
        sorted.begin());
  }
};

std::optional<TokenId> draw_noisy(const SamplingJob& job, Candidates list) {
  NoisyBest best(*job.params, job.output.size());
  float lowest = kInfinity;
  bool complete = false;
  for (const LogitCandidate& c : list) {
    if (c.token < 0) {
      complete = true;
      continue;
    }
    best.consider(c.token, c.value);
    lowest = std::min(lowest, best.noisy(c.token, c.value));
  }
  const float margin = kNoiseTolerance * std::max(1.0F, std::abs(best.best()));
  if (complete || lowest < best.best() - margin) return best.token();
  return std::nullopt;
}

std::optional<TokenId> draw_ranked(const SamplingJob& job, Candidates list, bool everything,
                                   const DrawStats& stats) {
  const SamplingParams& params = *job.params;
  if (!std::isfinite(stats.peak) || !log_is_certain(stats.sum)) return std::nullopt;
  Ranked ranked(list, stats.total);
  ranked.complete = ranked.complete || everything;
  std::vector<TokenLogprob>& kept = ranked.sorted;
  const float floor = params.min_p > 0 ? stats.peak + std::log(params.min_p) : -kInfinity;
  bool closed = ranked.complete || ranked.lowest < floor;
  const size_t certain = closed ? kept.size() : ranked.certain(stats.total);
  if (params.min_p > 0) {
    // Order by value - normaliser is order by value but for what rounding makes equal.
    std::vector<TokenId> above;
    for (const LogitCandidate& c : list) {
      if (c.token >= 0 && c.value >= floor) above.push_back(c.token);
    }
    std::sort(above.begin(), above.end());
    std::erase_if(kept, [&](const TokenLogprob& t) {
      return !std::binary_search(above.begin(), above.end(), t.token);
    });
  }
  if (params.top_k > 0) {
    if (!closed && static_cast<size_t>(params.top_k) > certain) return std::nullopt;
    keep_top_k(kept, params);
    closed = true;
  }
  if (params.top_p < 1.0F && closed) {
    keep_top_p(kept, params.top_p);
  } else if (params.top_p < 1.0F) {
    const double wanted = stats.mass * static_cast<double>(params.top_p);
    double sum = 0;
    size_t count = 0;
    while (count == 0 || sum < wanted) {
      if (count == certain) return std::nullopt;
      sum += std::exp(static_cast<double>(kept[count].logprob));
      ++count;
      if (std::abs(sum - wanted) <= kSumTolerance * wanted) return std::nullopt;
    }
    kept.resize(count);
    closed = true;
  }
  if (!closed) return std::nullopt;
  NoisyBest best(params, job.output.size());
  for (const TokenLogprob& t : kept) best.consider(t.token, t.logprob);
  return best.token();
}

std::optional<TokenId> draw_best(Candidates list) {
  const LogitCandidate* best = nullptr;
  for (const LogitCandidate& c : list) {
    if (c.token >= 0 && (best == nullptr || c.value > best->value)) best = &c;
  }
  return best != nullptr ? best->token : 0;
}

/// Nothing where only the whole row can tell.
std::optional<SampledToken> finish(const SamplingJob& job, DrawKind kind, Candidates list,
                                   Candidates raw_best, int64_t vocab, const DrawStats& stats) {
  if (stats.nan != 0) return std::nullopt;
  const bool everything = static_cast<int64_t>(list.size()) == vocab;
  const auto token = kind == DrawKind::best    ? draw_best(list)
                     : kind == DrawKind::noisy ? draw_noisy(job, list)
                                               : draw_ranked(job, list, everything, stats);
  if (!token) return std::nullopt;
  SampledToken out;
  out.token = *token;
  if (job.params->logprobs < 0) return out;
  if (!std::isfinite(stats.raw_peak) || !log_is_certain(stats.raw_sum)) return std::nullopt;
  const float normaliser = stats.raw_peak + static_cast<float>(std::log(stats.raw_sum));
  Ranked ranked(raw_best, normaliser);
  if (static_cast<int64_t>(raw_best.size()) == vocab) ranked.complete = true;
  const auto count = static_cast<size_t>(std::min<int64_t>(job.params->logprobs, vocab));
  if (count > std::min(ranked.sorted.size(), ranked.certain(normaliser))) return std::nullopt;
  ranked.sorted.resize(count);
  out.top = std::move(ranked.sorted);
  const auto chosen = std::find_if(list.begin(), list.end(),
                                   [&](const LogitCandidate& c) { return c.token == *token; });
  if (chosen == list.end()) return std::nullopt;  // nothing was above minus infinity
  out.logprob = chosen->raw - normaliser;
  return out;
}

Sampled from_row(const float* row, int64_t vocab, const SamplingJob& job) {
  return sample({row, static_cast<size_t>(vocab)}, *job.params, job.prompt, job.output,
                job.stop_ids, job.allowed);
}

/// The device's side of all jobs, in two copies: one to it, one back.
struct Request {
  std::vector<DrawRow> draws;
  std::vector<LogitEdit> edits;
  std::vector<uint32_t> masks;
  std::vector<bool> whole;  // jobs whose rows must be fetched anyway
  kernels::LogitCandidatesParams params;

  Request(kernels::KernelContext& ctx, std::span<const SamplingJob> jobs, int64_t vocab);
};

void set_penalties(const SamplingParams& params, DrawRow& draw) {
  draw.repetition = params.repetition_penalty;
  draw.frequency = params.frequency_penalty;
  draw.presence = params.presence_penalty;
}

Request::Request(kernels::KernelContext& ctx, std::span<const SamplingJob> jobs, int64_t vocab) {
  std::vector<std::optional<std::vector<LogitEdit>>> own(jobs.size());
  ctx.pool->parallel_for(static_cast<int64_t>(jobs.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      own[static_cast<size_t>(i)] = edits_of(jobs[static_cast<size_t>(i)]);
    }
  });
  params.mask_stride = ceil_div(vocab, 64) * 2;
  bool any_ranked = false;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const SamplingJob& job = jobs[i];
    DrawRow draw;
    whole.push_back(!own[i].has_value());
    draw.kind = kind_of(*job.params);
    draw.key = noise_key(*job.params);
    draw.position = job.output.size();
    if (draw.kind != DrawKind::best) draw.temperature = divisor(*job.params);
    set_penalties(*job.params, draw);
    draw.floor = job.params->min_p > 0 ? std::log(job.params->min_p) : -kInfinity;
    draw.first_edit = static_cast<int32_t>(edits.size());
    if (own[i]) {
      draw.edits = static_cast<int32_t>(own[i]->size());
      edits.insert(edits.end(), own[i]->begin(), own[i]->end());
    }
    if (job.allowed != nullptr) {
      draw.mask = static_cast<int32_t>(static_cast<int64_t>(masks.size()) / params.mask_stride);
      const auto words = job.allowed->words();
      const size_t at = masks.size();
      masks.resize(at + static_cast<size_t>(params.mask_stride), 0);
      std::memcpy(masks.data() + at, words.data(),
                  std::min(words.size_bytes(), static_cast<size_t>(params.mask_stride) * 4));
    }
    any_ranked = any_ranked || draw.kind == DrawKind::ranked;
    params.k = std::max(params.k, draw.kind == DrawKind::ranked  ? kMany
                                  : draw.kind == DrawKind::noisy ? kFew
                                                                 : 1);
    if (job.params->logprobs >= 0) params.raw_k = std::min(kRawBest, vocab);
    draws.push_back(draw);
  }
  params.k = std::min(params.k, vocab);
  params.sums = any_ranked;
  params.rows = static_cast<int64_t>(jobs.size());
  params.columns = vocab;
}

}  // namespace

Result<SampledRows> sample_candidates(kernels::KernelContext& ctx, const float* logits,
                                      int64_t vocab, std::span<const SamplingJob> jobs) {
  SampledRows out;
  if (jobs.empty()) return out;
  const ArenaScope scope(*ctx.arena);
  Request request(ctx, jobs, vocab);
  kernels::LogitCandidatesParams& p = request.params;
  UploadBatch uploads;
  uploads.add(request.draws, &p.draws);
  if (!request.edits.empty()) uploads.add(request.edits, &p.edits);
  if (!request.masks.empty()) uploads.add(request.masks, &p.masks);
  uploads.send(ctx);
  p.logits = logits;
  const int64_t stats_bytes = align_up(p.rows * static_cast<int64_t>(sizeof(DrawStats)), 64);
  const int64_t best_bytes =
      align_up(p.rows * p.k * static_cast<int64_t>(sizeof(LogitCandidate)), 64);
  const int64_t bytes =
      stats_bytes + best_bytes + p.rows * p.raw_k * static_cast<int64_t>(sizeof(LogitCandidate));
  auto* answer = ctx.arena->allocate<std::byte>(bytes);
  p.stats = reinterpret_cast<DrawStats*>(answer);
  p.candidates = reinterpret_cast<LogitCandidate*>(answer + stats_bytes);
  p.raw_best = reinterpret_cast<LogitCandidate*>(answer + stats_bytes + best_bytes);
  CEDAR_CHECK_OK(kernels::logit_candidates(ctx, p));
  CEDAR_TRY(const auto host, HostValues<std::byte>::read(ctx, answer, bytes));
  const auto* stats = reinterpret_cast<const DrawStats*>(host.data());
  const auto* best = reinterpret_cast<const LogitCandidate*>(host.data() + stats_bytes);
  const auto* raw_best =
      reinterpret_cast<const LogitCandidate*>(host.data() + stats_bytes + best_bytes);

  std::vector<std::optional<SampledToken>> found(jobs.size());
  ctx.pool->parallel_for(p.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto row = static_cast<size_t>(i);
      if (request.whole[row]) continue;
      found[row] =
          finish(jobs[row], request.draws[row].kind, {best + i * p.k, static_cast<size_t>(p.k)},
                 {raw_best + i * p.raw_k, static_cast<size_t>(p.raw_k)}, vocab, stats[i]);
    }
  });
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (found[i]) {
      out.tokens.emplace_back(std::move(*found[i]));
      continue;
    }
    ++out.whole_rows;
    CEDAR_TRY(const auto row,
              HostValues<float>::read(ctx, logits + static_cast<int64_t>(i) * vocab, vocab));
    out.tokens.push_back(from_row(row.data(), vocab, jobs[i]));
  }
  return out;
}

Result<SampledRows> sample_rows(kernels::KernelContext& ctx, const float* logits, int64_t vocab,
                                std::span<const SamplingJob> jobs) {
  if (ctx.device.kind != DeviceKind::cpu) return sample_candidates(ctx, logits, vocab, jobs);
  SampledRows out;
  std::vector<std::optional<Sampled>> found(jobs.size());
  ctx.pool->parallel_for(static_cast<int64_t>(jobs.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto row = static_cast<size_t>(i);
      found[row] = from_row(logits + i * vocab, vocab, jobs[row]);
    }
  });
  for (auto& one : found) out.tokens.push_back(std::move(*one));
  out.whole_rows = static_cast<int64_t>(jobs.size());
  return out;
}

}  // namespace cedar::engine
