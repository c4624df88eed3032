#pragma once
// What the text side knows about the served model.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "model/tokenizer.h"

namespace cedar::gateway {

struct ModelCard {
  std::string name;                  // id in the API
  std::vector<std::string> aliases;  // also accepted
  std::shared_ptr<const model::Tokenizer> tokenizer;
  int64_t vocab_size = 0;
  int64_t context_tokens = 0;         // prompt + answer
  int64_t default_max_tokens = 4096;  // of an answer, for requests that do not say
  bool default_thinking = true;
  TokenId eos = 1;
  int64_t created = 0;      // Unix seconds
  std::string fingerprint;  // system_fingerprint

  bool answers_to(std::string_view requested) const {
    return requested.empty() || requested == name ||
           std::find(aliases.begin(), aliases.end(), requested) != aliases.end();
  }
};

}  // namespace cedar::gateway
