#include "bench/transport/perftest.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace cedar::bench {
namespace {

/// A port that nobody listens on at this moment.
uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  uint16_t port = 13'337;
  if (::bind(fd, generic, size) == 0 && ::getsockname(fd, generic, &size) == 0)
    port = ntohs(address.sin_port);
  ::close(fd);
  return port;
}

/// Runs ucx_perftest with `arguments`; its standard output goes to `out_fd`.
pid_t spawn(const LinkKind& kind, std::vector<std::string> arguments, int out_fd) {
  arguments.insert(arguments.begin(), "ucx_perftest");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::setenv("UCX_TLS", kind.tls.c_str(), 1);
  if (!kind.devices.empty()) ::setenv("UCX_NET_DEVICES", kind.devices.c_str(), 1);
  ::setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 1);
  ::dup2(out_fd, STDOUT_FILENO);
  ::dup2(out_fd, STDERR_FILENO);
  ::execvp(argv[0], argv.data());
  ::_exit(127);
}

std::string read_to_end(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = ::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(got));
  return text;
}

/// The last line holds iterations, percentile, mean and overall latency in us, mean and overall MiB/s.
std::optional<PerftestResult> parse(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return std::nullopt;
  const size_t begin = text.find_last_of('\n', end);
  const std::string line = text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin);
  double iterations, percentile, latency, overall_latency, rate, overall_rate;
  if (std::sscanf(line.c_str(), "%lf,%lf,%lf,%lf,%lf,%lf", &iterations, &percentile, &latency,
                  &overall_latency, &rate, &overall_rate) != 6)
    return std::nullopt;
  return PerftestResult{overall_rate * (1 << 20), overall_latency};
}

}  // namespace

std::optional<PerftestResult> run_perftest(const LinkKind& kind, const std::string& test,
                                           uint64_t bytes, uint64_t iterations) {
  const std::string port = std::to_string(free_port());
  const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (null < 0) return std::nullopt;
  const pid_t server = spawn(kind, {"-p", port}, null);
  ::close(null);
  std::optional<PerftestResult> result;
  // The server says nothing when it listens; a client that comes too early fails at once.
  for (int attempt = 0; attempt < 50 && !result; ++attempt) {
    ::usleep(100'000);
    if (attempt > 0) {
      int status = 0;
      if (::waitpid(server, &status, WNOHANG) == server) return std::nullopt;
    }
    int pipe_fds[2];
    if (::pipe2(pipe_fds, O_CLOEXEC) != 0) break;
    const pid_t client =
        spawn(kind,
              {"127.0.0.1", "-p", port, "-t", test, "-s", std::to_string(bytes), "-n",
               std::to_string(iterations), "-w", std::to_string(iterations / 10 + 1), "-f", "-v"},
              pipe_fds[1]);
    ::close(pipe_fds[1]);
    const std::string text = read_to_end(pipe_fds[0]);
    ::close(pipe_fds[0]);
    ::waitpid(client, nullptr, 0);
    result = parse(text);
  }
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  return result;
}

}  // namespace cedar::bench
