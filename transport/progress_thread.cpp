#include "transport/progress_thread.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace cedar::transport {
namespace {

// Rounds of progress before commands and timers get their turn again.
constexpr int kProgressRounds = 64;

Error system_error(const std::string& what) {
  return make_error(Errc::io_error, what + ": " + std::strerror(errno));
}

bool watch(int epoll_fd, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return ::epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Result<std::unique_ptr<ProgressThread>> ProgressThread::create() {
  std::unique_ptr<ProgressThread> self(new ProgressThread);
  self->epoll_fd_ = ::epoll_create1(EPOLL_CLOEXEC);
  self->wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (self->epoll_fd_ < 0 || self->wake_fd_ < 0 || !watch(self->epoll_fd_, self->wake_fd_))
    return system_error("progress thread");
  return self;
}

ProgressThread::~ProgressThread() {
  if (thread_.joinable()) stop_and_join();
  if (epoll_fd_ >= 0) ::close(epoll_fd_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

Status ProgressThread::run(Work work, uint32_t spin_rounds) {
  work_ = std::move(work);
  if (!watch(epoll_fd_, work_.event_fd)) return system_error("epoll of the link");
  try {
    thread_ = std::thread([this, spin_rounds] { loop(spin_rounds); });
  } catch (const std::system_error& error) {
    return make_error(Errc::io_error, std::string("progress thread: ") + error.what());
  }
  return {};
}

bool ProgressThread::post(std::function<void()> command) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return false;
    commands_.push_back(std::move(command));
    if (commands_.size() > 1) return true;  // the first of a batch has woken the thread
  }
  wake();
  return true;
}

void ProgressThread::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_fd_, &one, sizeof one);
}

size_t ProgressThread::run_commands() {
  std::vector<std::function<void()>> batch;
  {
    std::lock_guard lock(mutex_);
    batch.swap(commands_);
  }
  for (const auto& command : batch) command();
  return batch.size();
}

void ProgressThread::sleep() {
  int timeout_ms = -1;
  if (const auto next = work_.next()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
  }
  epoll_event event{};
  ::epoll_wait(epoll_fd_, &event, 1, timeout_ms);
  uint64_t count = 0;
  [[maybe_unused]] const auto bytes = ::read(wake_fd_, &count, sizeof count);
}

void ProgressThread::loop(uint32_t spin_rounds) {
  thread_id_ = std::this_thread::get_id();
  uint32_t idle_rounds = 0;
  while (true) {
    size_t events = run_commands();
    for (int round = 0; round < kProgressRounds; ++round) {
      const size_t progressed = work_.progress();
      events += progressed;
      if (progressed == 0) break;
    }
    work_.tick(Clock::now());
    if (stopping_ && work_.finished()) {
      std::lock_guard lock(mutex_);
      if (commands_.empty()) {
        ended_ = true;
        return;
      }
      continue;
    }
    if (events > 0) {
      idle_rounds = 0;
    } else if (idle_rounds < spin_rounds) {
      ++idle_rounds;
    } else if (work_.arm()) {
      sleep();
    }
  }
}

void ProgressThread::stop_and_join() {
  stopping_ = true;
  wake();
  thread_.join();
}

}  // namespace cedar::transport
