#include "model/block_key.h"

#include <openssl/evp.h>

#include <algorithm>

#include "core/check.h"
#include "model/expected_tensors.h"

namespace cedar::model {
namespace {

/// Bytes to digest. Every part is framed by its length, so that no two different inputs give the
/// same bytes.
class Message {
 public:
  /// `label` separates the kinds of digests and carries the format's version.
  explicit Message(std::string_view label) { text(label); }

  void number(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8)
      bytes_.push_back(static_cast<uint8_t>(value >> shift));
  }
  void raw(std::span<const uint8_t> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void text(std::string_view value) {
    number(value.size());
    bytes_.insert(bytes_.end(), value.begin(), value.end());
  }
  Sha256 digest() const { return sha256(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

/// A few bytes from the middle of a tensor, where neither padding nor a header's copy is likely.
std::span<const uint8_t> sample(const TensorView& view) {
  constexpr int64_t kSampleBytes = 64;
  const int64_t size = std::min(view.bytes(), kSampleBytes);
  const auto* data = static_cast<const uint8_t*>(view.data);
  return {data + (view.bytes() - size) / 2, static_cast<size_t>(size)};
}

}  // namespace

Sha256 sha256(std::span<const uint8_t> bytes) {
  Sha256 digest{};
  unsigned size = 0;
  const int done =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr);
  CEDAR_ASSERT(done == 1 && size == digest.size(), "SHA-256 is not available");
  return digest;
}

std::string BlockKey::hex() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

BlockKey root_key(const Sha256& model_fingerprint, std::string_view tenant_salt) {
  Message message("cedar kv root 1");
  message.raw(model_fingerprint);
  message.text(tenant_salt);
  return {message.digest()};
}

BlockKey next_key(const BlockKey& parent, int64_t begin, std::span<const TokenId> tokens,
                  std::span<const ImageDigest> images) {
  const int64_t end = begin + static_cast<int64_t>(tokens.size());
  Message message("cedar kv block 1");
  message.raw(parent.digest);
  message.number(tokens.size());
  for (TokenId id : tokens) message.number(static_cast<uint64_t>(id));
  for (const ImageDigest& image : images) {
    if (image.begin >= end || image.end <= begin) continue;
    message.number(static_cast<uint64_t>(image.begin));
    message.number(static_cast<uint64_t>(image.end));
    message.raw(image.content);
  }
  return {message.digest()};
}

std::vector<BlockKey> block_keys(const BlockKey& root, std::span<const TokenId> tokens,
                                 std::span<const ImageDigest> images, int64_t block_tokens) {
  CEDAR_ASSERT(block_tokens > 0, std::to_string(block_tokens));
  std::vector<BlockKey> keys;
  BlockKey parent = root;
  const int64_t count = static_cast<int64_t>(tokens.size()) / block_tokens;
  for (int64_t block = 0; block < count; ++block) {
    const int64_t begin = block * block_tokens;
    parent = next_key(parent, begin,
                      tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(block_tokens)),
                      images);
    keys.push_back(parent);
  }
  return keys;
}

Sha256 model_fingerprint(const Checkpoint& checkpoint, std::string_view numeric_mode) {
  Message message("cedar model 1");
  message.text(checkpoint.config.canonical_json);
  message.text(numeric_mode);
  for (const ExpectedTensor& tensor : expected_tensors(checkpoint.config, checkpoint.plan)) {
    if (!tensor.encoder) continue;
    const TensorView* view = nullptr;
    for (size_t i = 0; view == nullptr && i < checkpoint.files.size(); ++i) {
      view = checkpoint.files[i]->find(tensor.name);
    }
    CEDAR_ASSERT(view != nullptr, tensor.name + " was loaded with every role");
    message.text(tensor.name);
    message.text(to_string(view->dtype));
    message.text(shape_string(view->shape));
    message.raw(sample(*view));
  }
  return message.digest();
}

}  // namespace cedar::model
