#include "bench/serve/server_process.h"

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gateway/gateway.h"
#include "model/tokenizer.h"

namespace cedar::bench {
namespace {

Result<gateway::ModelCard> make_card() {
  gateway::ModelCard card;
  CEDAR_TRY(card.tokenizer, model::Tokenizer::load(CEDAR_DEMO_MODEL_DIR "/tokenizer.json"));
  card.name = "synthetic";
  card.vocab_size = card.tokenizer->size();
  card.context_tokens = int64_t{1} << 20;
  card.default_thinking = false;
  card.fingerprint = "fp-synthetic";
  return card;
}

/// In the child: serves until the other end of `pipe` goes away.
int serve(const ServerSettings& settings, const TokenScript& script, Stamps& stamps, int pipe) {
  const auto card = make_card();
  if (!card) {
    std::fprintf(stderr, "cedar bench serve: %s\n", card.error().message().c_str());
    return 1;
  }
  gateway::GatewayOptions options;
  options.http.port = 0;
  options.http.io_threads = settings.io_threads;
  options.http.max_connections = settings.max_connections;
  options.http.write_timeout = settings.write_timeout;
  options.stream.write_timeout = settings.write_timeout;
  monitoring::Metrics metrics({{monitoring::Role::process, monitoring::Role::gateway}, false, ""});
  TokenSource source(settings.source, script, stamps);
  const auto gateway = gateway::Gateway::start(options, *card, source, metrics);
  if (!gateway) {
    std::fprintf(stderr, "cedar bench serve: %s\n", gateway.error().message().c_str());
    return 1;
  }
  const uint16_t port = (*gateway)->port();
  if (::write(pipe, &port, sizeof port) != sizeof port) return 1;
  char byte = 0;
  while (::read(pipe, &byte, 1) > 0) {
  }
  ::_exit(0);  // no client is left to be told
}

double ticks_of(const std::filesystem::path& stat) {
  std::ifstream file(stat);
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;  // state ... cmajflt
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

Result<std::unique_ptr<ServerProcess>> ServerProcess::start(const ServerSettings& settings,
                                                            const TokenScript& script,
                                                            Stamps& stamps) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return make_error(Errc::io_error, "socketpair");
  const int pid = ::fork();
  if (pid < 0) return make_error(Errc::io_error, "fork");
  if (pid == 0) {
    ::close(ends[0]);
    ::_exit(serve(settings, script, stamps, ends[1]));
  }
  ::close(ends[1]);
  std::unique_ptr<ServerProcess> server(new ServerProcess(pid, ends[0]));
  if (::read(ends[0], &server->port_, sizeof server->port_) != sizeof server->port_)
    return make_error(Errc::io_error, "the server's process did not start");
  return server;
}

ServerProcess::~ServerProcess() {
  ::close(pipe_);
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

int64_t ServerProcess::memory_bytes() const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::stoll(line.substr(8)) * 1024;
  }
  return 0;
}

ServerTime ServerProcess::processor_time() const {
  const std::filesystem::path process = "/proc/" + std::to_string(pid_);
  ServerTime time;
  time.total_s = ticks_of(process / "stat");
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator(process / "task", ignored)) {
    std::ifstream name_file(task.path() / "comm");
    std::string name;
    std::getline(name_file, name);
    if (name == kSourceThread) time.source_s += ticks_of(task.path() / "stat");
  }
  return time;
}

double own_processor_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace cedar::bench
