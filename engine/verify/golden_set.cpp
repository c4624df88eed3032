#include "engine/verify/golden_set.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <utility>

#include "core/float_formats.h"
#include "core/text_file.h"
#include "model/strict_json.h"

namespace cedar::engine::verify {
namespace {

constexpr std::string_view kLayer = "layer";
constexpr std::string_view kStep = "step";

/// The number after `word` at the start of `text`; `text` is advanced past it.
std::optional<int64_t> numbered(std::string_view word, std::string_view& text) {
  if (!text.starts_with(word)) return std::nullopt;
  const char* begin = text.data() + word.size();
  const char* end = text.data() + text.size();
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || rest == begin || value < 0 ||
      value > std::numeric_limits<LayerId>::max()) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<size_t>(rest - text.data()));
  return value;
}

bool fits(const std::vector<int64_t>& found, const std::vector<int64_t>& wanted) {
  return std::equal(found.begin(), found.end(), wanted.begin(), wanted.end(),
                    [](int64_t f, int64_t w) { return w == kAny || f == w; });
}

Result<nlohmann::json> read_json(const std::string& path) {
  CEDAR_TRY(const std::string text, read_text_file(path));
  auto parsed = model::parse_strict_json(text, Errc::invalid_argument);
  if (!parsed) return make_error(parsed.error().code, path + ": " + parsed.error().context);
  return parsed;
}

Status read_optional(const std::string& path, nlohmann::json& into) {
  if (!std::filesystem::exists(path)) return {};
  CEDAR_TRY(into, read_json(path));
  return {};
}

}  // namespace

Result<GoldenFile> GoldenFile::open(const std::string& path) {
  GoldenFile out;
  CEDAR_TRY(out.file_, model::SafetensorsFile::open(path));
  return out;
}

const TensorView* GoldenFile::tensor(const std::string& name, DType dtype,
                                     const std::vector<int64_t>& shape) {
  const TensorView* view = file_->find(name);
  if (view == nullptr) return nullptr;
  read_.insert(name);
  if (view->dtype == dtype && fits(view->shape, shape)) return view;
  const std::string problem = name + ": expected " + std::string(to_string(dtype)) + " " +
                              shape_string(shape) + ", found " +
                              std::string(to_string(view->dtype)) + " " +
                              shape_string(view->shape) + " (-1: any size)";
  // Several groups may ask for the same tensor.
  if (std::find(problems_.begin(), problems_.end(), problem) == problems_.end()) {
    problems_.push_back(problem);
  }
  return nullptr;
}

std::vector<std::string> GoldenFile::names() const {
  std::vector<std::string> out;
  for (const auto& [name, view] : file_->tensors()) out.push_back(name);
  return out;
}

std::vector<LayerTensor> GoldenFile::layer_tensors(const std::string& prefix,
                                                   const std::string& suffix) const {
  std::vector<LayerTensor> out;
  for (const std::string& name : names()) {
    if (!name.starts_with(prefix)) continue;
    std::string_view rest = std::string_view(name).substr(prefix.size());
    const auto layer = numbered(kLayer, rest);
    if (layer && rest == "." + suffix) out.push_back({static_cast<LayerId>(*layer), name});
  }
  std::sort(out.begin(), out.end(),
            [](const LayerTensor& a, const LayerTensor& b) { return a.layer < b.layer; });
  return out;
}

int64_t GoldenFile::steps(const std::string& prefix) const {
  int64_t count = 0;
  for (const std::string& name : names()) {
    if (!name.starts_with(prefix)) continue;
    std::string_view rest = std::string_view(name).substr(prefix.size());
    const auto step = numbered(kStep, rest);
    if (step && rest.starts_with(".")) count = std::max(count, *step + 1);
  }
  return count;
}

std::vector<std::string> GoldenFile::unread() const {
  std::vector<std::string> out;
  for (const std::string& name : names()) {
    if (!read_.contains(name)) out.push_back(name);
  }
  return out;
}

Result<GoldenSet> GoldenSet::open(const std::string& directory) {
  GoldenSet set;
  set.directory_ = directory;
  CEDAR_CHECK_OK(read_optional(directory + "/manifest.json", set.manifest_));
  CEDAR_CHECK_OK(read_optional(directory + "/prompts.json", set.prompts_));
  CEDAR_CHECK_OK(read_optional(directory + "/consistency.json", set.consistency_));
  if (!set.has_manifest() && !set.has_prompts()) {
    return make_error(Errc::not_found,
                      directory + ": neither manifest.json nor prompts.json is there");
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".safetensors") continue;
    CEDAR_TRY(GoldenFile file, GoldenFile::open(entry.path().string()));
    set.files_.emplace(entry.path().stem().string(), std::move(file));
  }
  if (error) return make_error(Errc::io_error, directory + ": " + error.message());
  return set;
}

GoldenFile* GoldenSet::file(const std::string& stem) {
  const auto found = files_.find(stem);
  return found == files_.end() ? nullptr : &found->second;
}

std::optional<std::vector<std::byte>> GoldenSet::bytes(const std::string& name) const {
  const auto text = read_text_file(directory_ + "/" + name);
  if (!text) return std::nullopt;
  std::vector<std::byte> out(text->size());
  std::transform(text->begin(), text->end(), out.begin(),
                 [](char c) { return static_cast<std::byte>(c); });
  return out;
}

std::vector<float> floats(const TensorView& view) {
  std::vector<float> out;
  out.reserve(static_cast<size_t>(view.elements()));
  if (view.dtype == DType::bf16) {
    for (Bf16 x : view.as<Bf16>()) out.push_back(static_cast<float>(x));
  } else {
    const auto values = view.as<float>();
    out.assign(values.begin(), values.end());
  }
  return out;
}

std::vector<int64_t> integers(const TensorView& view) {
  const auto widen = [](const auto& values) {
    return std::vector<int64_t>(values.begin(), values.end());
  };
  if (view.dtype == DType::i64) return widen(view.as<int64_t>());
  if (view.dtype == DType::i32) return widen(view.as<int32_t>());
  return widen(view.as<uint8_t>());
}

Result<std::vector<TokenId>> token_array(const nlohmann::json& value, const std::string& what) {
  const auto refused = [&](const nlohmann::json& found) {
    return make_error(Errc::invalid_argument,
                      what + ": expected an array of token ids, found " + model::short_text(found));
  };
  if (!value.is_array()) return refused(value);
  std::vector<TokenId> out;
  for (const nlohmann::json& id : value) {
    if (!id.is_number_integer()) return refused(id);
    const auto wide = id.get<int64_t>();
    if (!std::in_range<TokenId>(wide)) return refused(id);
    out.push_back(static_cast<TokenId>(wide));
  }
  return out;
}

}  // namespace cedar::engine::verify
