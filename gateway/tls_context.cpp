#include "gateway/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <cstring>

#include "core/log.h"
#include "core/text_file.h"

namespace cedar::gateway {
namespace {

constexpr const char* kCertificate = "http.tls_certificate";
constexpr const char* kKey = "http.tls_key";

Error bad_file(const char* setting, const std::string& file, const std::string& problem) {
  return make_error(Errc::invalid_config, std::string(setting) + ": " + file + ": " + problem);
}

/// OpenSSL's words for its newest error.
std::string openssl_reason() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "unknown error" : reason;
}

/// OpenSSL would ask the terminal.
int no_password(char*, int, int, void*) { return 0; }

/// HTTP/1.1 where the client offers it; otherwise as if no protocol had been named.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size,
                    const unsigned char* offered, unsigned int size, void*) {
  constexpr char kHttp[] = "http/1.1";
  constexpr unsigned kHttpSize = sizeof kHttp - 1;
  for (unsigned at = 0; at + 1 + offered[at] <= size; at += 1 + offered[at]) {
    if (offered[at] != kHttpSize || std::memcmp(offered + at + 1, kHttp, kHttpSize) != 0) continue;
    *out = offered + at + 1;
    *out_size = offered[at];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_NOACK;
}

/// A file's text, for OpenSSL to read from memory: what it opened by name could be a pipe that nobody writes to, and
/// another file than the one that was looked at.
class PemText {
 public:
  explicit PemText(std::string text)
      : text_(std::move(text)),
        bio_(BIO_new_mem_buf(text_.data(), static_cast<int>(text_.size()))) {}
  ~PemText() {
    BIO_free(bio_);
    OPENSSL_cleanse(text_.data(), text_.size());
  }
  PemText(const PemText&) = delete;
  PemText& operator=(const PemText&) = delete;
  BIO* bio() { return bio_; }

 private:
  std::string text_;
  BIO* bio_;
};

Result<std::unique_ptr<PemText>> read_pem(const char* setting, const std::string& file) {
  auto text = read_text_file(file);
  if (!text) {
    return make_error(Errc::invalid_config, std::string(setting) + ": " + text.error().context);
  }
  return std::make_unique<PemText>(std::move(*text));
}

/// The server's certificate, then those of its issuers. False: OpenSSL's newest error says why.
bool use_certificates(SSL_CTX* context, BIO* bio) {
  X509* own = PEM_read_bio_X509_AUX(bio, nullptr, no_password, nullptr);
  const bool used = own != nullptr && SSL_CTX_use_certificate(context, own) == 1;
  X509_free(own);
  if (!used) return false;
  while (X509* issuer = PEM_read_bio_X509(bio, nullptr, no_password, nullptr)) {
    if (SSL_CTX_add0_chain_cert(context, issuer) == 1) continue;
    X509_free(issuer);
    return false;
  }
  const unsigned long code = ERR_peek_last_error();
  if (ERR_GET_LIB(code) != ERR_LIB_PEM || ERR_GET_REASON(code) != PEM_R_NO_START_LINE) return false;
  ERR_clear_error();  // the end of the file
  return true;
}

bool use_key(SSL_CTX* context, BIO* bio) {
  EVP_PKEY* key = PEM_read_bio_PrivateKey(bio, nullptr, no_password, nullptr);
  const bool used = key != nullptr && SSL_CTX_use_PrivateKey(context, key) == 1;
  EVP_PKEY_free(key);
  return used;
}

Status load_files(SSL_CTX* context, const std::string& certificate_file,
                  const std::string& key_file) {
  CEDAR_TRY(const auto certificates, read_pem(kCertificate, certificate_file));
  CEDAR_TRY(const auto key, read_pem(kKey, key_file));
  ERR_clear_error();
  if (!use_certificates(context, certificates->bio())) {
    return bad_file(kCertificate, certificate_file,
                    "no PEM certificate (" + openssl_reason() + ')');
  }
  if (!use_key(context, key->bio())) {
    const unsigned long code = ERR_peek_last_error();
    if (ERR_GET_LIB(code) == ERR_LIB_X509 && (ERR_GET_REASON(code) == X509_R_KEY_VALUES_MISMATCH ||
                                              ERR_GET_REASON(code) == X509_R_KEY_TYPE_MISMATCH)) {
      ERR_clear_error();
      return bad_file(kKey, key_file, "not the key of the certificate in " + certificate_file);
    }
    return bad_file(kKey, key_file,
                    "no PEM private key without a password (" + openssl_reason() + ')');
  }
  if (SSL_CTX_check_private_key(context) != 1) {
    ERR_clear_error();
    return bad_file(kKey, key_file, "not the key of the certificate in " + certificate_file);
  }
  const X509* certificate = SSL_CTX_get0_certificate(context);
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    log::warn("gateway", "the certificate has expired", {{"file", certificate_file}});
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::load(const std::string& certificate_file,
                                                           const std::string& key_file) {
  if (certificate_file.empty()) {
    return make_error(Errc::invalid_config,
                      std::string(kCertificate) + ": is missing beside " + kKey);
  }
  if (key_file.empty()) {
    return make_error(Errc::invalid_config,
                      std::string(kKey) + ": is missing beside " + kCertificate);
  }
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  if (context == nullptr) return make_error(Errc::internal, "TLS: " + openssl_reason());
  const std::shared_ptr<const TlsContext> result(new TlsContext(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(
      context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);  // tickets need no memory here
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  CEDAR_CHECK_OK(load_files(context, certificate_file, key_file));
  return result;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

}  // namespace cedar::gateway
