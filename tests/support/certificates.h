#pragma once
// A certificate authority and certificates it has signed, made on the spot.

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

namespace cedar::test {

class Authority {
 public:
  /// Writes `name`.pem, the certificate that others verify against.
  Authority(const std::string& directory, const std::string& name)
      : directory_(directory), key_(make_key()) {
    certificate_ = make_certificate(name, key_.get());
    add_extension(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
    sign(certificate_.get());
    path_ = directory + '/' + name + ".pem";
    write_certificate(path_, certificate_.get());
  }
  const std::string& path() const { return path_; }

  struct Files {
    std::string certificate, key;
  };
  /// A certificate for `name`, signed by this authority. `alternatives`: other names as OpenSSL writes them
  /// ("DNS:localhost,IP:127.0.0.1"); empty: none.
  Files issue(const std::string& name, const std::string& alternatives = {}) const {
    const Key key = make_key();
    const Certificate certificate = make_certificate(name, key.get());
    X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
    if (!alternatives.empty())
      add_extension(certificate.get(), NID_subject_alt_name, alternatives.c_str());
    sign(certificate.get());
    Files files{directory_ + '/' + name + ".pem", directory_ + '/' + name + ".key"};
    write_certificate(files.certificate, certificate.get());
    std::FILE* out = open(files.key);
    PEM_write_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    std::fclose(out);
    return files;
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
    void operator()(X509* certificate) const { X509_free(certificate); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static Key make_key() { return Key(EVP_EC_gen("P-256")); }
  static Certificate make_certificate(const std::string& name, EVP_PKEY* key) {
    Certificate certificate(X509_new());
    X509_set_version(certificate.get(), 2);
    static long serial = 0;
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 24 * 3600);
    X509_set_pubkey(certificate.get(), key);
    X509_NAME* subject = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(certificate.get(), subject);
    return certificate;
  }
  static void add_extension(X509* certificate, int id, const char* value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }
  void sign(X509* certificate) const { X509_sign(certificate, key_.get(), EVP_sha256()); }
  static std::FILE* open(const std::string& path) {
    std::FILE* out = std::fopen(path.c_str(), "w");
    if (out == nullptr) throw std::runtime_error("cannot write " + path);
    return out;
  }
  static void write_certificate(const std::string& path, X509* certificate) {
    std::FILE* out = open(path);
    PEM_write_X509(out, certificate);
    std::fclose(out);
  }

  std::string directory_;
  Key key_;
  Certificate certificate_;
  std::string path_;
};

}  // namespace cedar::test
