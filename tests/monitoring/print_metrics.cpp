// The text of a process with every role, for `promtool check metrics`.

#include <cstdio>

#include "monitoring/metrics.h"

int main() {
  cedar::monitoring::Metrics metrics;
  metrics.count_http(cedar::monitoring::Route::chat, 200);
  std::fputs(metrics.scrape().c_str(), stdout);
}
