#include "engine/writing.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/candidate_sampling.h"
#include "engine/request_checks.h"

namespace cedar::engine {
namespace {

/// Takes a token over into the sequence and its constraint.
TokenEvent take_token(const model::ModelConfig& config, Writing& writing,
                      Result<SampledToken> sampled) {
  TokenEvent event;
  event.id = writing.request.id;
  event.index = static_cast<int64_t>(writing.output().size());
  if (sampled && writing.output_state && !writing.output_state->accept(sampled->token)) {
    sampled = make_error(Errc::internal, "token " + std::to_string(sampled->token) +
                                             " was sampled against the constraint");
  }
  if (!sampled) {
    event.finish = FinishReason::failed;
    event.error = std::move(sampled.error());
    return event;
  }
  event.token = std::move(*sampled);
  const TokenId token = event.token.token;
  writing.tokens.push_back(token);
  const bool ended = writing.output_state && writing.output_state->finished();
  const bool eos = token == config.eos_token_id && (ended || !writing.request.ignore_eos);
  const auto& extra = writing.request.stop_ids;
  if (eos || std::find(extra.begin(), extra.end(), token) != extra.end()) {
    event.finish = FinishReason::stop;
  } else if (event.index + 1 == writing.request.max_new_tokens) {
    event.finish = FinishReason::length;
  }
  return event;
}

}  // namespace

Status check_decode_request(const model::ModelConfig& config, const EngineOptions& options,
                            const DecodeRequest& request) {
  CEDAR_CHECK_OK(check_prompt(config, request.prompt));
  if (!request.emitted.empty()) {
    CEDAR_CHECK_OK(check_prompt(config, request.emitted));
  }
  CEDAR_CHECK_OK(validate(request.sampling, config.vocab_size));
  if (request.max_new_tokens < 1) {
    return make_error(Errc::invalid_argument, "max_tokens: must be at least 1, got " +
                                                  std::to_string(request.max_new_tokens));
  }
  for (TokenId id : request.stop_ids) {
    if (id < 0 || id >= config.vocab_size) {
      return make_error(Errc::invalid_argument, "stop_token_ids: " + std::to_string(id) +
                                                    " is outside the vocabulary of " +
                                                    std::to_string(config.vocab_size));
    }
  }
  if (static_cast<int64_t>(request.emitted.size()) >= request.max_new_tokens) {
    return make_error(Errc::invalid_argument,
                      "emitted: " + std::to_string(request.emitted.size()) + " tokens of at most " +
                          std::to_string(request.max_new_tokens) + " leave nothing to write");
  }
  // Compared before it is added: a client may ask for any 63-bit count.
  if (request.max_new_tokens > options.max_context_tokens) {
    return make_error(Errc::context_too_long, std::to_string(request.prompt.size()) +
                                                  " prompt tokens + " +
                                                  std::to_string(request.max_new_tokens) +
                                                  " new tokens needed, the context holds " +
                                                  std::to_string(options.max_context_tokens));
  }
  return {};
}

Result<Writing> begin_writing(const model::ModelConfig& config, const EngineOptions& options,
                              DecodeRequest request) {
  Writing writing;
  if (!request.constraint.empty()) {
    if (!options.constraints) {
      return make_error(Errc::unsupported, "this engine cannot constrain its output");
    }
    CEDAR_TRY(writing.output_state, options.constraints->start(request.constraint));
  }
  for (size_t i = 0; writing.output_state && i < request.emitted.size(); ++i) {
    if (writing.output_state->accept(request.emitted[i])) continue;
    return make_error(Errc::invalid_argument,
                      "emitted: token " + std::to_string(i) + " breaks the constraint");
  }
  writing.tokens = tokens_to_read(request);
  writing.stop_ids.push_back(config.eos_token_id);
  writing.stop_ids.insert(writing.stop_ids.end(), request.stop_ids.begin(), request.stop_ids.end());
  writing.request = std::move(request);
  return writing;
}

Result<WrittenTokens> write_tokens(kernels::KernelContext& ctx, const model::ModelConfig& config,
                                   const float* logits, std::span<Writing* const> sequences) {
  std::vector<std::shared_ptr<const structured::TokenMask>> masks(sequences.size());
  std::vector<std::optional<Error>> failed(sequences.size());
  std::vector<SamplingJob> jobs;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Writing& writing = *sequences[i];
    if (writing.output_state) {
      auto mask = writing.output_state->mask();
      if (mask) {
        masks[i] = std::move(*mask);
      } else {
        failed[i] = std::move(mask.error());
      }
    }
    jobs.push_back({&writing.request.sampling, writing.request.prompt, writing.output(),
                    writing.stop_ids, masks[i].get()});
  }
  CEDAR_TRY(SampledRows sampled, sample_rows(ctx, logits, config.vocab_size, jobs));
  WrittenTokens written;
  written.whole_rows = sampled.whole_rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Result<SampledToken>& token = sampled.tokens[i];
    written.events.push_back(failed[i] ? take_token(config, *sequences[i], std::move(*failed[i]))
                                       : take_token(config, *sequences[i], std::move(token)));
  }
  return written;
}

}  // namespace cedar::engine
