#include <algorithm>
#include <filesystem>
#include <map>

#include "core/text_file.h"
#include "model/safetensors.h"
#include "model/strict_json.h"

namespace cedar::model {
namespace {

using nlohmann::json;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

/// Shard file name to the tensors it holds.
using ShardMap = std::map<std::string, std::vector<std::string>>;

/// A shard lives beside its index: a name with a separator could read any file of the machine.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
}

Result<ShardMap> read_index(const std::string& path) {
  CEDAR_TRY(const std::string text, read_text_file(path));
  Result<json> document = parse_strict_json(text, Errc::invalid_checkpoint);
  if (!document) return make_error(document.error().code, path + ": " + document.error().context);
  if (!document->is_object() || !document->contains("weight_map") ||
      !(*document)["weight_map"].is_object()) {
    return make_error(Errc::invalid_checkpoint, path + ": has no object weight_map");
  }
  ShardMap shards;
  for (const auto& [tensor, shard] : (*document)["weight_map"].items()) {
    if (!shard.is_string() || !is_plain_name(shard.get<std::string>())) {
      return make_error(
          Errc::invalid_checkpoint,
          path + ": tensor '" + tensor + "': expected a file name, got " + short_text(shard));
    }
    shards[shard.get<std::string>()].push_back(tensor);
  }
  return shards;
}

/// Adds the shard's tensors. `listed` is what the index promises of it, in any order.
Status add_shard(const std::string& path, const std::vector<std::string>& listed,
                 CheckpointFiles& out) {
  CEDAR_TRY(auto file, SafetensorsFile::open(path));
  for (const std::string& name : listed) {
    if (file->find(name) == nullptr) {
      return make_error(Errc::invalid_checkpoint, path + ": tensor '" + name + "': " + kIndexName +
                                                      " lists it here, but the file lacks it");
    }
  }
  // All listed ones are there, so equal counts mean equal sets.
  if (file->tensors().size() != listed.size()) {
    for (const auto& [name, view] : file->tensors()) {
      if (std::find(listed.begin(), listed.end(), name) == listed.end()) {
        return make_error(Errc::invalid_checkpoint, path + ": tensor '" + name + "': " +
                                                        kIndexName + " does not list it here");
      }
    }
  }
  for (const auto& [name, view] : file->tensors()) {
    out.tensors.emplace(name, CheckpointTensor{view, file.get()});
  }
  out.shards.push_back(std::move(file));
  return {};
}

Result<CheckpointFiles> open_single(const std::string& path) {
  CheckpointFiles files;
  CEDAR_TRY(auto file, SafetensorsFile::open(path));
  for (const auto& [name, view] : file->tensors()) {
    files.tensors.emplace(name, CheckpointTensor{view, file.get()});
    files.names.push_back(name);
  }
  files.shards.push_back(std::move(file));
  return files;
}

/// The name of a file that looks like a shard (model-00001-of-00002.safetensors); empty: none.
std::string some_shard(const std::string& directory) {
  std::string first;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.rfind("model-", 0) == 0 && at->path().extension() == ".safetensors" &&
        (first.empty() || name < first)) {
      first = name;
    }
  }
  return first;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

bool has_weights(const std::string& directory) {
  return exists(directory + "/" + kIndexName) || exists(directory + "/" + kSingleName);
}

Result<CheckpointFiles> open_checkpoint_files(
    const std::string& directory, const std::function<bool(const std::string&)>& wanted) {
  const std::string index = directory + "/" + kIndexName;
  const std::string single = directory + "/" + kSingleName;
  if (!exists(index)) {
    if (exists(single)) return open_single(single);
    if (const std::string shard = some_shard(directory); !shard.empty()) {
      return make_error(Errc::invalid_checkpoint,
                        directory + ": has shards (" + shard + ") but no " + kIndexName);
    }
    return make_error(Errc::not_found, directory + ": no weights found (neither " + kIndexName +
                                           " nor " + kSingleName + ")");
  }
  CEDAR_TRY(const ShardMap shards, read_index(index));
  CheckpointFiles files;
  for (const auto& [shard, tensors] : shards) {
    files.names.insert(files.names.end(), tensors.begin(), tensors.end());
    if (wanted && std::none_of(tensors.begin(), tensors.end(), wanted)) continue;
    CEDAR_CHECK_OK(add_shard(directory + "/" + shard, tensors, files));
  }
  std::sort(files.names.begin(), files.names.end());
  return files;
}

}  // namespace cedar::model
