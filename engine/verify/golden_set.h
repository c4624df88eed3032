#pragma once
// A folder of golden values. It remembers which tensors were read, so that a vector that no check knows is
// reported instead of passing in silence.

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/ids.h"
#include "core/result.h"
#include "core/tensor_view.h"
#include "model/safetensors.h"

namespace cedar::engine::verify {

/// Any size of a dimension.
constexpr int64_t kAny = -1;

/// "p73.layer4.topk": the tensors of one layer of one prompt.
struct LayerTensor {
  LayerId layer = 0;
  std::string name;
};

class GoldenFile {
 public:
  static Result<GoldenFile> open(const std::string& path);

  bool has(const std::string& name) const { return file_->find(name) != nullptr; }
  /// Marks the tensor as read. Null when it is absent, or when its type or shape (kAny: any size) is another:
  /// then problems() says so.
  const TensorView* tensor(const std::string& name, DType dtype, const std::vector<int64_t>& shape);
  /// All names, sorted.
  std::vector<std::string> names() const;
  /// Names "`prefix`layer{i}.`suffix`", by layer.
  std::vector<LayerTensor> layer_tensors(const std::string& prefix,
                                         const std::string& suffix) const;
  /// How many of "`prefix`step0.", "`prefix`step1." ... have tensors.
  int64_t steps(const std::string& prefix) const;

  std::vector<std::string> unread() const;
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::shared_ptr<const model::SafetensorsFile> file_;
  std::set<std::string> read_;
  std::vector<std::string> problems_;
};

class GoldenSet {
 public:
  /// A folder with manifest.json (vectors of every kind) or prompts.json (a trained checkpoint's answers).
  /// Errors: not_found when it has neither; io_error and invalid_argument naming the file.
  static Result<GoldenSet> open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  bool has_manifest() const { return !manifest_.is_null(); }
  bool has_prompts() const { return !prompts_.is_null(); }
  const nlohmann::json& manifest() const { return manifest_; }
  const nlohmann::json& prompts() const { return prompts_; }
  /// Null when the folder has no consistency.json.
  const nlohmann::json& consistency() const { return consistency_; }

  /// `stem`.safetensors; null when the folder does not have it.
  GoldenFile* file(const std::string& stem);
  std::map<std::string, GoldenFile>& files() { return files_; }
  /// The bytes of another file of the folder; nothing when it is absent.
  std::optional<std::vector<std::byte>> bytes(const std::string& name) const;

 private:
  std::string directory_;
  nlohmann::json manifest_, prompts_, consistency_;
  std::map<std::string, GoldenFile> files_;  // by stem
};

/// Widened values of a bf16 or f32 tensor.
std::vector<float> floats(const TensorView& view);
/// Values of an i32, i64, u8 or boolean tensor.
std::vector<int64_t> integers(const TensorView& view);

/// An array of integers in JSON. Errors: invalid_argument naming `what`.
Result<std::vector<TokenId>> token_array(const nlohmann::json& value, const std::string& what);

}  // namespace cedar::engine::verify
