#include "actors/secret_proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "core/check.h"

namespace cedar::actors {
namespace {

/// Length first: no two lists of parts make the same text.
void append_part(std::string& text, std::string_view part) {
  const auto size = static_cast<uint64_t>(part.size());
  for (int shift = 0; shift < 64; shift += 8) text += static_cast<char>(size >> shift & 0xFF);
  text += part;
}

std::string hmac(std::string_view secret, std::string_view text) {
  std::string out(32, '\0');
  unsigned int size = 0;
  const auto* bytes = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                           reinterpret_cast<unsigned char*>(out.data()), &size);
  CEDAR_ASSERT(bytes != nullptr && size == out.size(), "HMAC-SHA256 is not available");
  return out;
}

}  // namespace

std::string random_nonce() {
  std::string nonce(32, '\0');
  const int status =
      RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size()));
  CEDAR_ASSERT(status == 1, "no randomness");
  return nonce;
}

std::string node_proof(std::string_view secret, std::string_view nonce, std::string_view name,
                       uint64_t generation) {
  std::string text;
  append_part(text, "node");
  append_part(text, nonce);
  append_part(text, name);
  append_part(text, std::to_string(generation));
  return hmac(secret, text);
}

std::string gateway_proof(std::string_view secret, std::string_view nonce, std::string_view name) {
  std::string text;
  append_part(text, "gateway");
  append_part(text, nonce);
  append_part(text, name);
  return hmac(secret, text);
}

bool equal_proofs(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace cedar::actors
