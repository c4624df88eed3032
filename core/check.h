#pragma once
// Broken invariants are bugs: stop the process and say which, with the values.

#include <string>

namespace cedar {

[[noreturn]] void assertion_failed(const char* expression, const char* file, int line,
                                   const std::string& detail);

}  // namespace cedar

/// Always on. The detail (anything convertible to std::string) is only evaluated on failure.
#define CEDAR_ASSERT(condition, detail)                                               \
  do {                                                                                \
    if (!(condition)) [[unlikely]]                                                    \
      ::cedar::assertion_failed(#condition, __FILE__, __LINE__, std::string(detail)); \
  } while (false)

/// Debug builds only: for checks inside inner loops.
#ifdef NDEBUG
#define CEDAR_DCHECK(condition) \
  do {                          \
  } while (false)
#else
#define CEDAR_DCHECK(condition) CEDAR_ASSERT(condition, "")
#endif
