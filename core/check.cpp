#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace cedar {

void assertion_failed(const char* expression, const char* file, int line,
                      const std::string& detail) {
  std::fprintf(stderr, "cedar: %s:%d: invariant broken: %s%s%s\n", file, line, expression,
               detail.empty() ? "" : ": ", detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace cedar
