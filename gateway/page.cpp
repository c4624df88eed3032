#include "gateway/page.h"

namespace cedar::gateway {

HttpResponse page_response(std::string_view if_none_match) {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  // A weak tag (W/"...") of the same text is the same page.
  const bool known = if_none_match.find(kPage.etag) != std::string_view::npos;
  if (known) {
    response.status = 304;
  } else {
    response.body = std::string(kPage.html);
  }
  response.headers = {
      {"ETag", std::string(kPage.etag)},
      {"Cache-Control", "no-cache"},  // kept, but asked for again: a new server has a new page
      {"Content-Security-Policy", std::string(kPage.security_policy)},
      {"X-Content-Type-Options", "nosniff"},
      {"X-Frame-Options", "DENY"},
      {"Referrer-Policy", "no-referrer"},
      {"Cross-Origin-Opener-Policy", "same-origin"},
      {"Permissions-Policy", "camera=(), geolocation=(), microphone=()"},
  };
  return response;
}

}  // namespace cedar::gateway
