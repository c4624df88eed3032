// Any bytes to the safetensors reader: an error, or tensors that lie inside the file.

#include <cstdint>

#include "tests/fuzz/safetensors_invariants.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  cedar::test::check_safetensors(std::as_bytes(std::span(data, size)));
  return 0;
}
