// tokenizer.json: an error, or a tokenizer that gives back what it was given.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/check.h"
#include "model/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cedar;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = model::Tokenizer::parse(text);
  if (!tokenizer) {
    CEDAR_ASSERT(!tokenizer.error().context.empty(), "an error without context");
    return 0;
  }
  for (std::string_view sample :
       {std::string_view("ticket 482 open mira oslo\n\n"),
        std::string_view("caf\xc3\xa9 \xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x98\x80"),
        text.substr(0, 200)}) {
    const auto ids = (*tokenizer)->encode(sample);
    for (TokenId id : ids) CEDAR_ASSERT((*tokenizer)->contains(id), std::to_string(id));
    CEDAR_ASSERT((*tokenizer)->decode(ids) == model::sanitize_utf8(sample),
                 "the text came back changed");
  }
  return 0;
}
