#include "model/safetensors.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>

#include "core/text_file.h"
#include "model/strict_json.h"

namespace cedar::model {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr size_t kMaxRank = 8;

/// One entry of the header.
struct Entry {
  std::string name;
  DType dtype = DType::u8;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes behind the header
  uint64_t end = 0;
};

Error bad_tensor(const std::string& name, const std::string& problem) {
  return make_error(Errc::invalid_checkpoint, "tensor '" + name + "': " + problem);
}

std::optional<uint64_t> non_negative(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  return std::nullopt;  // the parser keeps negative and fractional numbers in other types
}

/// Bytes of a tensor of this shape; nothing when they do not fit an int64.
std::optional<uint64_t> size_of(const std::vector<int64_t>& shape, DType dtype) {
  int64_t bytes = dtype_bytes(dtype);
  for (int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

Result<std::vector<int64_t>> read_shape(const std::string& name, const json& value) {
  if (!value.is_array() || value.size() > kMaxRank) {
    return bad_tensor(name, "shape: expected a list of at most " + std::to_string(kMaxRank) +
                                " extents, got " + short_text(value));
  }
  std::vector<int64_t> shape;
  for (const json& extent : value) {
    const auto number = non_negative(extent);
    if (!number || *number > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return bad_tensor(name, "shape: expected non-negative integers, got " + short_text(value));
    }
    shape.push_back(static_cast<int64_t>(*number));
  }
  return shape;
}

Result<Entry> read_entry(const std::string& name, const json& value) {
  Entry entry;
  entry.name = name;
  if (!value.is_object()) return bad_tensor(name, "expected an object, got " + short_text(value));
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) return bad_tensor(name, std::string("has no ") + key);
  }
  const json& dtype = value["dtype"];
  if (!dtype.is_string()) {
    return bad_tensor(name, "dtype: expected a string, got " + short_text(dtype));
  }
  const auto known = dtype_from_safetensors(dtype.get_ref<const std::string&>());
  if (!known) return bad_tensor(name, "unknown dtype " + short_text(dtype));
  entry.dtype = *known;
  CEDAR_TRY(entry.shape, read_shape(name, value["shape"]));

  const json& offsets = value["data_offsets"];
  const auto begin =
      offsets.is_array() && offsets.size() == 2 ? non_negative(offsets[0]) : std::nullopt;
  const auto end = begin ? non_negative(offsets[1]) : std::nullopt;
  if (!end || *begin > *end) {
    return bad_tensor(name, "data_offsets: expected [begin, end], got " + short_text(offsets));
  }
  entry.begin = *begin;
  entry.end = *end;
  const auto bytes = size_of(entry.shape, entry.dtype);
  if (!bytes || *bytes != entry.end - entry.begin) {
    return bad_tensor(name,
                      "data_offsets " + short_text(offsets) + " hold " +
                          std::to_string(entry.end - entry.begin) + " bytes, but " +
                          dtype.get<std::string>() + " " + shape_string(entry.shape) + " needs " +
                          (bytes ? std::to_string(*bytes) : "more than an int64 of") + " bytes");
  }
  return entry;
}

Status check_metadata(const json& metadata) {
  const bool strings =
      metadata.is_object() &&
      std::all_of(metadata.begin(), metadata.end(), [](const json& v) { return v.is_string(); });
  if (strings) return {};
  return make_error(Errc::invalid_checkpoint,
                    "__metadata__: expected an object of strings, got " + short_text(metadata));
}

/// In order of their bytes, the tensors must cover [0, payload) without hole or overlap.
Status check_cover(std::vector<Entry>& entries, uint64_t payload) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.end > payload) {
      return bad_tensor(entry.name, "ends at byte " + std::to_string(entry.end) + " of " +
                                        std::to_string(payload) +
                                        ": the file is truncated or wrong");
    }
    if (entry.begin != covered) {
      return bad_tensor(entry.name,
                        "starts at byte " + std::to_string(entry.begin) +
                            (entry.begin < covered ? ", which overlaps the tensor before it ("
                                                   : ", which leaves a hole (expected ") +
                            std::to_string(covered) + ")");
    }
    covered = entry.end;
  }
  if (covered == payload) return {};
  return make_error(Errc::invalid_checkpoint, std::to_string(payload - covered) +
                                                  " bytes behind the last tensor belong to none");
}

/// The header's text. Errors: the length field is cut off or points past the file.
Result<std::string_view> header_text(std::span<const std::byte> bytes) {
  uint64_t length = 0;
  if (bytes.size() < kLengthBytes) {
    return make_error(Errc::invalid_checkpoint, "has " + std::to_string(bytes.size()) +
                                                    " bytes, too few for a safetensors file");
  }
  for (size_t i = 0; i < kLengthBytes; ++i)
    length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  const uint64_t room = std::min<uint64_t>(bytes.size() - kLengthBytes, kMaxHeaderBytes);
  if (length > room) {
    return make_error(Errc::invalid_checkpoint, "header length " + std::to_string(length) +
                                                    " exceeds " + std::to_string(room) +
                                                    ", the room that file and format leave");
  }
  return std::string_view(reinterpret_cast<const char*>(bytes.data() + kLengthBytes), length);
}

/// Closes on scope exit.
struct FileDescriptor {
  int value = -1;
  ~FileDescriptor() {
    if (value >= 0) ::close(value);
  }
};

}  // namespace

Status SafetensorsFile::read_header(std::span<const std::byte> bytes) {
  CEDAR_TRY(const std::string_view text, header_text(bytes));
  CEDAR_TRY(const json header, parse_strict_json(text, Errc::invalid_checkpoint));
  if (!header.is_object()) {
    return make_error(Errc::invalid_checkpoint,
                      "header: expected an object, got " + short_text(header));
  }
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      CEDAR_CHECK_OK(check_metadata(value));
    } else {
      CEDAR_TRY(entries.emplace_back(), read_entry(name, value));
    }
  }
  const auto payload = bytes.subspan(kLengthBytes + text.size());
  CEDAR_CHECK_OK(check_cover(entries, payload.size()));
  for (Entry& entry : entries) {
    add_tensor(entry.name, entry.dtype, std::move(entry.shape),
               payload.subspan(entry.begin, entry.end - entry.begin));
  }
  return {};
}

void SafetensorsFile::add_tensor(const std::string& name, DType dtype, std::vector<int64_t> shape,
                                 std::span<const std::byte> data) {
  const void* start = data.data();
  if (reinterpret_cast<uintptr_t>(start) % static_cast<uintptr_t>(dtype_bytes(dtype)) != 0) {
    aligned_copies_.push_back(std::make_unique<std::byte[]>(data.size()));
    if (!data.empty()) std::memcpy(aligned_copies_.back().get(), start, data.size());
    start = aligned_copies_.back().get();
  }
  tensors_.emplace(name, TensorView{start, dtype, std::move(shape)});
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::parse(
    std::span<const std::byte> bytes, const std::string& name) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = name;
  Status status = file->read_header(bytes);
  if (!status) return make_error(status.error().code, name + ": " + status.error().context);
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  CEDAR_TRY(const int opened, open_file(path, FileKind::regular));
  const FileDescriptor descriptor{opened};
  struct stat info = {};
  if (::fstat(descriptor.value, &info) != 0) return file_error(path, errno);
  if (info.st_size == 0) return make_error(Errc::invalid_checkpoint, path + ": is empty");

  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile());
  file->path_ = path;
  file->mapping_bytes_ = static_cast<size_t>(info.st_size);
  void* mapping =
      ::mmap(nullptr, file->mapping_bytes_, PROT_READ, MAP_PRIVATE, descriptor.value, 0);
  if (mapping == MAP_FAILED) return file_error(path, errno);
  file->mapping_ = mapping;
  Status status = file->read_header({static_cast<const std::byte*>(mapping), file->mapping_bytes_});
  if (!status) return make_error(status.error().code, path + ": " + status.error().context);
  return std::shared_ptr<const SafetensorsFile>(std::move(file));
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace cedar::model
