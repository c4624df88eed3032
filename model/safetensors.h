#pragma once
// Memory-mapped safetensors files (read only).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/tensor_view.h"

namespace cedar::model {

/// One mapped file. Views stay valid as long as the file object lives. Thread-safe after open. A
/// view's data is aligned to its element: a tensor that the file itself does not align (the format
/// allows that) is copied once.
class SafetensorsFile {
 public:
  /// Checks the whole header: it is one JSON object without repeated keys, every tensor has a known
  /// dtype, and a shape whose size is that of its byte range; the ranges cover the bytes behind the
  /// header exactly, without hole or overlap. Errors: not_found, io_error, invalid_checkpoint
  /// naming file and tensor.
  static Result<std::shared_ptr<const SafetensorsFile>> open(const std::string& path);
  /// The same over bytes in memory (fuzzing, tests); `bytes` must outlive the object.
  static Result<std::shared_ptr<const SafetensorsFile>> parse(std::span<const std::byte> bytes,
                                                              const std::string& name);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  /// Null when absent.
  const TensorView* find(const std::string& name) const;

 private:
  SafetensorsFile() = default;
  Status read_header(std::span<const std::byte> bytes);
  void add_tensor(const std::string& name, DType dtype, std::vector<int64_t> shape,
                  std::span<const std::byte> data);

  std::string path_;
  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  std::map<std::string, TensorView> tensors_;
  std::vector<std::unique_ptr<std::byte[]>> aligned_copies_;
};

struct CheckpointTensor {
  TensorView view;
  const SafetensorsFile* file = nullptr;  // where it was found
};

/// The shards of a checkpoint directory.
struct CheckpointFiles {
  std::vector<std::shared_ptr<const SafetensorsFile>> shards;  // those that were opened
  std::map<std::string, CheckpointTensor> tensors;             // all tensors of the opened shards
  std::vector<std::string> names;  // all tensors of the checkpoint, sorted
};

/// True when the directory holds an index of shards or a single weight file.
bool has_weights(const std::string& directory);

/// Opens shards through model.safetensors.index.json, or model.safetensors alone. With `wanted`
/// set, a shard of which no tensor is wanted is not opened and need not exist: a role reads only
/// its own files.
/// Errors: not_found when the directory holds neither file; invalid_checkpoint when it holds shards
/// without their index, when a shard lacks a tensor that the index lists for it, holds one that the
/// index does not, or when a shard's name leaves the directory.
Result<CheckpointFiles> open_checkpoint_files(
    const std::string& directory, const std::function<bool(const std::string&)>& wanted = nullptr);

}  // namespace cedar::model
