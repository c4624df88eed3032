#pragma once
// Writes safetensors files for tests: whole ones, and ones with a header of the test's choice.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/safetensors.h"

namespace cedar::test {

struct RawTensor {
  std::string name;
  std::string dtype;  // the file's spelling
  std::vector<int64_t> shape;
  std::string bytes;
};

/// The file with this header text (any text) and these bytes behind it.
std::string safetensors_with_header(std::string_view header, std::string_view payload);

/// A well-formed file holding `tensors` in order.
std::string safetensors_file(const std::vector<RawTensor>& tensors);

/// A tensor of zeros.
RawTensor zeros(std::string name, std::string dtype, std::vector<int64_t> shape);

/// A mapped tensor, copied.
RawTensor raw_copy(const std::string& name, const TensorView& view);

}  // namespace cedar::test
