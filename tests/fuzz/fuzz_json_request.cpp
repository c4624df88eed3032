// Bodies of HTTP requests: each is prepared, or refused with a status of the client's side.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/gateway/request_fuzz.h"

namespace {

const cedar::gateway::ModelCard& card() {
  static const cedar::gateway::ModelCard card = [] {
    cedar::gateway::ModelCard result;
    auto tokenizer = cedar::model::Tokenizer::load(CEDAR_SOURCE_DIR "/config/demo/tokenizer.json");
    result.name = "demo";
    result.tokenizer = tokenizer.value();
    result.vocab_size = 4096;
    result.context_tokens = 16384;
    return result;
  }();
  return card;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (bool chat : {true, false}) {
    const int status = cedar::gateway::check_body(text, card(), chat);
    CEDAR_ASSERT(status == 0 || (status >= 400 && status < 500), std::to_string(status));
  }
  return 0;
}
