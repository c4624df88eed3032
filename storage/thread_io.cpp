#include "storage/thread_io.h"

#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cedar::storage {
namespace {

Status run(const FileOperation& operation) {
  int64_t done = 0;
  while (done < operation.bytes) {
    std::byte* const at = operation.data + done;
    const auto left = static_cast<size_t>(operation.bytes - done);
    const ssize_t moved = operation.write
                              ? ::pwrite(operation.fd, at, left, operation.offset + done)
                              : ::pread(operation.fd, at, left, operation.offset + done);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return make_error(Errc::io_error, std::strerror(errno));
    if (moved == 0) return make_error(Errc::io_error, "the file is shorter than expected");
    done += moved;
  }
  return {};
}

class ThreadIo final : public FileIo {
 public:
  explicit ThreadIo(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~ThreadIo() override {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void submit(FileOperation operation) override {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(operation));
    }
    changed_.notify_one();
  }
  std::string_view name() const override { return "threads"; }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const FileOperation operation = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      operation.done(run(operation));
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FileOperation> queue_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<FileIo> make_thread_io(int threads) { return std::make_unique<ThreadIo>(threads); }

}  // namespace cedar::storage
