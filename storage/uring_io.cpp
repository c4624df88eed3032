#include "storage/uring_io.h"

#include <liburing.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace cedar::storage {
namespace {

/// One thread takes completions; submissions come from whoever calls, under a lock.
class UringIo final : public FileIo {
 public:
  explicit UringIo(int depth) : depth_(depth) {}
  ~UringIo() override {
    if (!reaper_.joinable()) return;
    {
      std::unique_lock lock(mutex_);
      ending_ = true;
      wake_reaper();
    }
    reaper_.join();
    ::io_uring_queue_exit(&ring_);
  }

  Status start() {
    // One entry more, for the operation that wakes the reaper.
    const int error = ::io_uring_queue_init(static_cast<unsigned>(depth_) + 1, &ring_, 0);
    if (error < 0) {
      return make_error(Errc::unsupported, std::string("io_uring: ") + std::strerror(-error));
    }
    reaper_ = std::thread([this] { reap(); });
    return {};
  }

  void submit(FileOperation operation) override {
    std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(operation), 0});
    pump();
  }
  std::string_view name() const override { return "io_uring"; }

 private:
  struct Running {
    FileOperation operation;
    int64_t moved = 0;  // the kernel may do less than it was asked for
  };

  /// REQUIRES: the lock.
  void pump() {
    int begun = 0;
    while (!waiting_.empty() && running_ < depth_) {
      auto running = std::make_unique<Running>(std::move(waiting_.front()));
      waiting_.pop_front();
      ++running_;
      ++begun;
      prepare(std::move(running));
    }
    if (begun > 0) ::io_uring_submit(&ring_);
  }
  void prepare(std::unique_ptr<Running> running) {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);  // there is one: at most depth_ run
    const FileOperation& operation = running->operation;
    std::byte* const data = operation.data + running->moved;
    const auto bytes = static_cast<unsigned>(operation.bytes - running->moved);
    const auto offset = static_cast<uint64_t>(operation.offset + running->moved);
    if (operation.write) {
      ::io_uring_prep_write(entry, operation.fd, data, bytes, offset);
    } else {
      ::io_uring_prep_read(entry, operation.fd, data, bytes, offset);
    }
    ::io_uring_sqe_set_data(entry, running.release());
  }
  void wake_reaper() {
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    if (entry == nullptr) return;
    ::io_uring_prep_nop(entry);
    ::io_uring_sqe_set_data(entry, nullptr);
    ::io_uring_submit(&ring_);
  }

  void reap() {
    for (;;) {
      io_uring_cqe* completion = nullptr;
      const int error = ::io_uring_wait_cqe(&ring_, &completion);
      if (error == -EINTR) continue;
      if (error < 0) return;
      std::unique_ptr<Running> running(static_cast<Running*>(::io_uring_cqe_get_data(completion)));
      const int result = completion->res;
      ::io_uring_cqe_seen(&ring_, completion);
      if (running) finish(std::move(running), result);
      std::lock_guard lock(mutex_);
      if (ending_ && running_ == 0 && waiting_.empty()) return;
    }
  }
  void finish(std::unique_ptr<Running> running, int result) {
    const bool again = result == -EINTR || result == -EAGAIN;
    if (result > 0) running->moved += result;
    if (again || (result > 0 && running->moved < running->operation.bytes)) {
      std::lock_guard lock(mutex_);
      prepare(std::move(running));
      ::io_uring_submit(&ring_);
      return;
    }
    const std::function<void(Status)> done = std::move(running->operation.done);
    running.reset();
    if (result < 0) {
      done(make_error(Errc::io_error, std::strerror(-result)));
    } else if (result == 0) {
      done(make_error(Errc::io_error, "the file is shorter than expected"));
    } else {
      done({});
    }
    std::lock_guard lock(mutex_);
    --running_;
    pump();
  }

  const int depth_;
  io_uring ring_{};
  std::mutex mutex_;  // of the submission side and of what follows
  std::deque<Running> waiting_;
  int running_ = 0;
  bool ending_ = false;
  std::thread reaper_;
};

}  // namespace

Result<std::unique_ptr<FileIo>> make_uring_io(int depth) {
  auto io = std::make_unique<UringIo>(depth);
  CEDAR_CHECK_OK(io->start());
  return std::unique_ptr<FileIo>(std::move(io));
}

}  // namespace cedar::storage
