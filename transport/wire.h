#pragma once
// Little-endian fields with bounds. A reader that ran out of bytes stays failed and gives zeros, so a parser checks once.

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <cstddef>
#include <cstdint>

namespace cedar::transport {

class ByteWriter {
 public:
  template <class T>
  ByteWriter& put(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i)));
    return *this;
  }
  ByteWriter& put_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  /// Length as u16, then the characters; what does not fit `limit` is cut.
  ByteWriter& put_text(std::string_view text, size_t limit = 512) {
    text = text.substr(0, limit);
    put(static_cast<uint16_t>(text.size()));
    return put_bytes(std::as_bytes(std::span(text)));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    static_assert(std::is_unsigned_v<T>);
    const auto field = get_bytes(sizeof(T));
    uint64_t value = 0;
    for (size_t i = 0; i < field.size(); ++i)
      value |= std::to_integer<uint64_t>(field[i]) << (8 * i);
    return static_cast<T>(value);
  }
  std::span<const std::byte> get_bytes(size_t count) {
    if (failed_ || count > rest_.size()) {
      failed_ = true;
      return {};
    }
    const auto field = rest_.first(count);
    rest_ = rest_.subspan(count);
    return field;
  }
  std::string get_text() {
    const auto bytes = get_bytes(get<uint16_t>());
    std::string text(bytes.size(), '\0');
    if (!bytes.empty()) std::memcpy(text.data(), bytes.data(), bytes.size());
    return text;
  }
  std::span<const std::byte> rest() const { return rest_; }
  bool failed() const { return failed_; }
  /// Everything was read and nothing is left.
  bool finished() const { return !failed_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool failed_ = false;
};

}  // namespace cedar::transport
