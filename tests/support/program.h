#pragma once
// Runs a program and collects what it says.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace cedar::test {

struct ProgramResult {
  int status = -1;  // exit status; -1: ended by a signal
  std::string out, err;
};

/// A running child. Killed when it outlives its owner.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments) {
    int out[2], err[2], in[2];
    if (pipe(out) != 0 || pipe(err) != 0 || pipe(in) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      for (int fd : {out[0], out[1], err[0], err[1], in[0], in[1]}) ::close(fd);
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    for (int fd : {out[1], err[1], in[0]}) ::close(fd);
    out_ = out[0];
    err_ = err[0];
    in_ = in[1];
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (int fd : {out_, err_, in_}) {
      if (fd >= 0) ::close(fd);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// Gives `text` as the whole standard input.
  void input(const std::string& text) {
    size_t sent = 0;
    while (sent < text.size()) {
      const ssize_t count = ::write(in_, text.data() + sent, text.size() - sent);
      if (count <= 0) break;
      sent += static_cast<size_t>(count);
    }
    ::close(std::exchange(in_, -1));
  }
  void signal(int number) const { kill(pid_, number); }
  /// Reads until the program's output holds `text`; false at its end or after `limit`.
  bool wait_for_output(const std::string& text,
                       std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (result_.out.find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > deadline || !read_some(100)) return false;
    }
    return true;
  }
  const std::string& output() const { return result_.out; }
  /// To the end of the program.
  ProgramResult finish() {
    if (in_ >= 0) ::close(std::exchange(in_, -1));
    while (read_some(-1)) {
    }
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    result_.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return result_;
  }

 private:
  /// False when both pipes have ended.
  bool read_some(int limit_ms) {
    pollfd waits[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
    if (out_ < 0 && err_ < 0) return false;
    poll(waits, 2, limit_ms);
    take(waits[0], out_, result_.out);
    take(waits[1], err_, result_.err);
    return true;
  }
  static void take(const pollfd& wait, int& fd, std::string& text) {
    if (fd < 0 || wait.revents == 0) return;
    char bytes[65536];
    const ssize_t count = ::read(fd, bytes, sizeof bytes);
    if (count > 0) text.append(bytes, static_cast<size_t>(count));
    else ::close(std::exchange(fd, -1));
  }

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1, in_ = -1;
  ProgramResult result_;
};

inline ProgramResult run_program(std::vector<std::string> arguments,
                                 const std::string& input = {}) {
  Program program(std::move(arguments));
  if (!input.empty()) program.input(input);
  return program.finish();
}

}  // namespace cedar::test
