#include "tests/support/safetensors_writer.h"

#include <nlohmann/json.hpp>

namespace cedar::test {

std::string safetensors_with_header(std::string_view header, std::string_view payload) {
  std::string file;
  for (size_t i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file.append(header).append(payload);
}

std::string safetensors_file(const std::vector<RawTensor>& tensors) {
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string payload;
  for (const RawTensor& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", tensor.dtype},
        {"shape", tensor.shape},
        {"data_offsets", {payload.size(), payload.size() + tensor.bytes.size()}}};
    payload += tensor.bytes;
  }
  return safetensors_with_header(header.dump(), payload);
}

RawTensor zeros(std::string name, std::string dtype, std::vector<int64_t> shape) {
  const TensorView view{nullptr, dtype_from_safetensors(dtype).value(), shape};
  const size_t bytes = static_cast<size_t>(view.bytes());
  return {std::move(name), std::move(dtype), std::move(shape), std::string(bytes, '\0')};
}

RawTensor raw_copy(const std::string& name, const TensorView& view) {
  return {name, std::string(to_string(view.dtype)), view.shape,
          std::string(static_cast<const char*>(view.data), static_cast<size_t>(view.bytes()))};
}

}  // namespace cedar::test
