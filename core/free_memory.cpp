#include "core/free_memory.h"

#include <cstdio>
#include <string>

namespace cedar {

int64_t available_memory() {
  std::FILE* file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return -1;
  char line[128];
  long long kib = -1;
  while (kib < 0 && std::fgets(line, sizeof line, file) != nullptr) {
    std::sscanf(line, "MemAvailable: %lld kB", &kib);
  }
  std::fclose(file);
  return kib < 0 ? -1 : kib * 1024;
}

Status check_available(int64_t bytes) {
  const int64_t available = available_memory();
  if (available < 0 || bytes <= available) return {};
  return make_error(Errc::out_of_memory, "needs " + std::to_string(bytes) +
                                             " bytes of memory, the machine has " +
                                             std::to_string(available) + " to give");
}

}  // namespace cedar
