#pragma once
// Just enough of the safetensors format for tests of rooms that cannot use model/safetensors. Any problem with a
// file ends the test program: test data is part of the repository.

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/dtype.h"
#include "core/tensor_view.h"

namespace cedar::test {

/// The tensors of one file, or of a sharded checkpoint, held in memory.
class SafetensorsLite {
 public:
  static SafetensorsLite open(const std::string& path) {
    SafetensorsLite file;
    file.add(path);
    return file;
  }

  /// Every shard that model.safetensors.index.json of `directory` names.
  static SafetensorsLite open_checkpoint(const std::string& directory) {
    std::ifstream in(directory + "/model.safetensors.index.json");
    CEDAR_ASSERT(in.good(), directory);
    const nlohmann::json index = nlohmann::json::parse(in);
    std::set<std::string> shards;
    for (const auto& entry : index.at("weight_map")) shards.insert(entry.get<std::string>());
    SafetensorsLite file;
    for (const std::string& shard : shards) file.add(directory + "/" + shard);
    return file;
  }

  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, view] : tensors_) all.push_back(name);
    return all;
  }
  /// Valid as long as this object lives.
  const TensorView& at(const std::string& name) const {
    const auto found = tensors_.find(name);
    CEDAR_ASSERT(found != tensors_.end(), name);
    return found->second;
  }

 private:
  void add(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    CEDAR_ASSERT(in.good(), path);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    uint64_t header_bytes = 0;
    CEDAR_ASSERT(bytes.size() >= sizeof header_bytes, path);
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    const char* header = bytes.data() + sizeof header_bytes;
    const nlohmann::json json = nlohmann::json::parse(header, header + header_bytes);
    for (const auto& [name, entry] : json.items()) {
      if (name == "__metadata__") continue;
      TensorView view;
      const auto dtype = dtype_from_safetensors(entry.at("dtype").get<std::string>());
      CEDAR_ASSERT(dtype.has_value(), name);
      view.dtype = *dtype;
      view.shape = entry.at("shape").get<std::vector<int64_t>>();
      const auto begin = entry.at("data_offsets").at(0).get<int64_t>();
      const auto end = entry.at("data_offsets").at(1).get<int64_t>();
      // A copy of its own: inside the file a tensor may lie at any address.
      const char* data = header + header_bytes;
      storage_.emplace_back(data + begin, data + end);
      view.data = storage_.back().data();
      tensors_[name] = view;
    }
  }

  std::vector<std::vector<char>> storage_;  // moving a vector keeps the address of its bytes
  std::map<std::string, TensorView> tensors_;
};

}  // namespace cedar::test
