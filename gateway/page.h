#pragma once
// The web page at `/`: one document with its style and its program inside, part of the program text.
// tools/embed_page.py puts it together from gateway/page/ and clients/js/cedar.js when Cedar is built.

#include <string_view>

#include "gateway/http_writer.h"

namespace cedar::gateway {

struct Page {
  std::string_view html;
  std::string_view etag;             // with its quotation marks
  std::string_view security_policy;  // Content-Security-Policy: the hashes of the two inline parts
};

/// In the generated page_data.cpp.
extern const Page kPage;

/// `if_none_match`: what the client has, as the header says it; 304 when that is this page.
HttpResponse page_response(std::string_view if_none_match);

}  // namespace cedar::gateway
