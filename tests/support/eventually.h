#pragma once
// Waiting for what another thread or process does.

#include <chrono>
#include <thread>

namespace cedar::test {

/// Polls `condition` until it holds or `limit` has passed.
template <class Condition>
bool eventually(Condition condition, std::chrono::milliseconds limit = std::chrono::seconds(10)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace cedar::test
