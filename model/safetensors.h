#pragma once
// Memory-mapped safetensors files (read only).

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/tensor_view.h"

namespace cedar::model {

/// One mapped file. Views stay valid as long as the file object lives. Thread-safe after open.
class SafetensorsFile {
 public:
  /// Checks the whole header: sizes match shape x dtype, ranges inside the file, no overlap, no gap games,
  /// no duplicate names. Errors: not_found, io_error, invalid_checkpoint naming file and tensor.
  static Result<std::shared_ptr<const SafetensorsFile>> open(const std::string& path);
  /// The same over bytes in memory (fuzzing, tests); `bytes` must outlive the object.
  static Result<std::shared_ptr<const SafetensorsFile>> parse(std::span<const std::byte> bytes,
                                                              const std::string& name);
  ~SafetensorsFile();

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  /// Null when absent.
  const TensorView* find(const std::string& name) const;

 private:
  SafetensorsFile() = default;
  std::string path_;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  std::map<std::string, TensorView> tensors_;
};

/// All shards of a checkpoint directory: through model.safetensors.index.json, or model.safetensors alone.
/// A tensor listed in the index but absent from its shard (or found in another) is refused; so is one that
/// two shards hold. `progress`, if set, is called after every shard with (bytes mapped, bytes in all).
struct CheckpointFiles {
  std::vector<std::shared_ptr<const SafetensorsFile>> shards;
  std::map<std::string, TensorView> tensors;
};
Result<CheckpointFiles> open_checkpoint_files(const std::string& directory);

}  // namespace cedar::model
