// Messages of a request, as JSON: an error, or a prompt.

#include <cstddef>
#include <cstdint>

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "model/chat_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cedar;
  const auto messages = nlohmann::ordered_json::parse(data, data + size, nullptr, false);
  if (messages.is_discarded()) return 0;
  for (bool thinking : {false, true}) {
    model::ChatOptions options;
    options.thinking = thinking;
    const auto prompt = model::render_chat(messages, options);
    if (!prompt) CEDAR_ASSERT(!prompt.error().context.empty(), "an error without context");
  }
  return 0;
}
