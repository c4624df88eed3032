#pragma once
// How values of lower rooms travel in messages. Reading any bytes is safe: what cannot be a value is an error of the
// deserialiser or becomes one that the engines refuse.

#include <utility>  // before load_callback.hpp, which uses std::move and does not include it

#include <caf/meta/load_callback.hpp>
#include <caf/meta/save_callback.hpp>
#include <caf/meta/type_name.hpp>
#include <caf/none.hpp>
#include <caf/sec.hpp>

#include <cstring>
#include <string>

#include "actors/client.h"
#include "model/block_key.h"

namespace cedar {

template <class I>
typename I::result_type inspect(I& f, Error& x) {
  auto code = static_cast<uint8_t>(x.code);
  auto load = [&]() -> caf::error {
    // A newer peer may know more codes than this one.
    x.code =
        code <= static_cast<uint8_t>(Errc::internal) ? static_cast<Errc>(code) : Errc::internal;
    return caf::none;
  };
  return f(caf::meta::type_name("Error"), code, x.context, caf::meta::load_callback(load));
}

}  // namespace cedar

namespace cedar::model {

template <class I>
typename I::result_type inspect(I& f, BlockKey& x) {
  uint64_t words[4];
  static_assert(sizeof words == sizeof x.digest);
  std::memcpy(words, x.digest.data(), sizeof words);
  auto load = [&]() -> caf::error {
    std::memcpy(x.digest.data(), words, sizeof words);
    return caf::none;
  };
  return f(caf::meta::type_name("BlockKey"), words[0], words[1], words[2], words[3],
           caf::meta::load_callback(load));
}

}  // namespace cedar::model

namespace cedar::engine {

template <class I>
typename I::result_type inspect(I& f, SamplingParams& x) {
  return f(caf::meta::type_name("SamplingParams"), x.temperature, x.top_p, x.top_k, x.min_p,
           x.presence_penalty, x.frequency_penalty, x.repetition_penalty, x.seed, x.choice,
           x.logit_bias, x.min_tokens, x.logprobs);
}

template <class I>
typename I::result_type inspect(I& f, DecodeRequest& x) {
  return f(caf::meta::type_name("DecodeRequest"), x.id, x.prompt, x.emitted, x.sampling,
           x.max_new_tokens, x.stop_ids, x.ignore_eos, x.constraint);
}

template <class I>
typename I::result_type inspect(I& f, ImageRows& x) {
  // In one piece: an image has millions of values.
  std::string values(x.values.size() * sizeof(Bf16), '\0');
  if (!x.values.empty()) std::memcpy(values.data(), x.values.data(), values.size());
  auto load = [&]() -> caf::error {
    if (values.size() % sizeof(Bf16) != 0) return caf::sec::invalid_argument;
    x.values.resize(values.size() / sizeof(Bf16));
    if (!values.empty()) std::memcpy(x.values.data(), values.data(), values.size());
    return caf::none;
  };
  return f(caf::meta::type_name("ImageRows"), x.position, x.rows, values,
           caf::meta::load_callback(load));
}

template <class I>
typename I::result_type inspect(I& f, TokenLogprob& x) {
  return f(caf::meta::type_name("TokenLogprob"), x.token, x.logprob);
}

template <class I>
typename I::result_type inspect(I& f, SampledToken& x) {
  bool has_logprob = x.logprob.has_value();
  float logprob = x.logprob.value_or(0.0F);
  auto load = [&]() -> caf::error {
    x.logprob = has_logprob ? std::optional<float>(logprob) : std::nullopt;
    return caf::none;
  };
  return f(caf::meta::type_name("SampledToken"), x.token, has_logprob, logprob, x.top,
           caf::meta::load_callback(load));
}

template <class I>
typename I::result_type inspect(I& f, TokenEvent& x) {
  auto finish = static_cast<uint8_t>(x.finish);
  bool has_error = x.error.has_value();
  Error error = x.error.value_or(Error{Errc::ok, {}});
  auto load = [&]() -> caf::error {
    if (finish > static_cast<uint8_t>(FinishReason::failed)) return caf::sec::invalid_argument;
    x.finish = static_cast<FinishReason>(finish);
    x.error = has_error ? std::optional<Error>(error) : std::nullopt;
    return caf::none;
  };
  return f(caf::meta::type_name("TokenEvent"), x.id, x.index, x.token, finish, has_error, error,
           caf::meta::load_callback(load));
}

}  // namespace cedar::engine

namespace cedar::actors {

template <class I>
typename I::result_type inspect(I& f, GenerateRequest& x) {
  return f(caf::meta::type_name("GenerateRequest"), x.decode, x.images, x.deadline, x.priority,
           x.cache_salt);
}

}  // namespace cedar::actors
