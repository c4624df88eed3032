#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <boost/asio/ssl.hpp>
#include <boost/beast/websocket/ssl.hpp>

#include "apps/stream_socket_of.h"
#include "core/text_file.h"

namespace cedar::apps {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
using ErrorCode = boost::system::error_code;
using TlsStream = ssl::stream<asio::ip::tcp::socket>;

Error failed(const std::string& why) { return make_error(Errc::unavailable, why); }

Status trust(ssl::context& context, const std::string& ca_file) {
  ErrorCode error;
  if (ca_file.empty()) {
    context.set_default_verify_paths(error);
    return error ? Status(failed("the system's certificates: " + error.message())) : Status();
  }
  if (const auto text = read_text_file(ca_file, FileKind::any); !text) {
    return failed("--ca: " + text.error().context);
  }
  context.load_verify_file(ca_file, error);
  if (error) return failed("--ca: " + ca_file + ": no PEM certificate (" + error.message() + ')');
  return {};
}

/// Only the names that a certificate lists as alternatives count, as for browsers.
Status expect_name(SSL* tls, const std::string& host) {
  X509_VERIFY_PARAM* wanted = SSL_get0_param(tls);
  X509_VERIFY_PARAM_set_hostflags(
      wanted, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  ErrorCode no_address;
  asio::ip::make_address(host, no_address);
  // What SSL_set_tlsext_host_name() is without its cast.
  const auto announce = [&] {
    return SSL_ctrl(tls, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                    const_cast<char*>(host.c_str())) == 1;
  };
  const bool taken = no_address ? SSL_set1_host(tls, host.c_str()) == 1 && announce()
                                : X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str()) == 1;
  return taken ? Status() : Status(failed("no certificate can be for " + host));
}

std::string explain_handshake(const SSL* tls, const ErrorCode& error, const std::string& host,
                              bool own_ca) {
  const long verdict = SSL_get_verify_result(tls);
  if (verdict == X509_V_ERR_HOSTNAME_MISMATCH || verdict == X509_V_ERR_IP_ADDRESS_MISMATCH) {
    return "the server's certificate is not for " + host;
  }
  if (verdict != X509_V_OK) {
    return std::string("the server's certificate is not trusted: ") +
           X509_verify_cert_error_string(verdict) +
           (own_ca ? "" : "; --ca FILE names who else may have signed it");
  }
  const int reason = ERR_GET_REASON(static_cast<unsigned long>(error.value()));
  const bool no_tls = error.category() == asio::error::get_ssl_category() &&
                      (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_UNEXPECTED_MESSAGE ||
                       reason == SSL_R_PACKET_LENGTH_TOO_LONG);
  if (no_tls) return "the server does not speak TLS; without it, the address is ws://";
  if (error == asio::error::eof || error == ssl::error::stream_truncated ||
      error == asio::error::connection_reset) {
    return "the server ends the TLS handshake; if it does not speak TLS, the address is ws://";
  }
  return "TLS: " + error.message();
}

}  // namespace

Result<std::unique_ptr<StreamSocket>> connect_tls(asio::io_context& io, const WsUrl& url,
                                                  const StreamAccess& access) {
  ssl::context context(ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.native_handle(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  CEDAR_CHECK_OK(trust(context, access.ca_file));
  CEDAR_TRY(auto tcp, connect_tcp(io, url));
  TlsStream stream(std::move(tcp), context);
  SSL* tls = stream.native_handle();
  SSL_set_verify(tls, SSL_VERIFY_PEER, nullptr);
  CEDAR_CHECK_OK(expect_name(tls, url.host));
  ErrorCode error;
  stream.handshake(ssl::stream_base::client, error);
  if (error) return failed(explain_handshake(tls, error, url.host, !access.ca_file.empty()));
  auto socket = std::make_unique<StreamSocketOf<TlsStream>>(std::move(stream));
  CEDAR_CHECK_OK(socket->open(io, url, access));
  return std::unique_ptr<StreamSocket>(std::move(socket));
}

}  // namespace cedar::apps
