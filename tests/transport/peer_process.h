#pragma once
// Starts transport_peer and talks to it.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "transport/descriptor.h"

namespace cedar::test {

inline std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[std::to_integer<int>(b) >> 4];
    text += kDigits[std::to_integer<int>(b) & 15];
  }
  return text;
}
inline std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  return bytes;
}

/// Word i is i x an odd number of the seed: every word differs from its neighbours and from other seeds'.
inline void fill_pattern(std::byte* data, uint64_t bytes, uint64_t seed) {
  for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = (i + 1) * (0x9E3779B97F4A7C15ull + 2 * seed);
    std::memcpy(data + i, &word, 8);
  }
}
inline bool has_pattern(const std::byte* data, uint64_t bytes, uint64_t seed) {
  for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    if (word != (i + 1) * (0x9E3779B97F4A7C15ull + 2 * seed)) return false;
  }
  return true;
}

struct PeerArguments {
  std::string program;
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  uint32_t node = 1;
  uint64_t generation = 1;
  std::string tls;
  std::string devices;
  uint64_t bytes = 64u << 20;
  std::vector<std::string> prefix;  // "ip netns exec NAME"
};

class PeerProcess {
 public:
  explicit PeerProcess(const PeerArguments& a) {
    std::vector<std::string> words = a.prefix;
    for (const std::string& word :
         {a.program, a.host, std::to_string(a.port), std::to_string(a.node),
          std::to_string(a.generation), a.tls, a.devices, std::to_string(a.bytes)})
      words.push_back(word);
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) return;
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    stdin_ = in[1];
    std::FILE* reader = ::fdopen(out[0], "r");
    char* line = nullptr;
    size_t size = 0;
    while (descriptor_.ranges.empty() && ::getline(&line, &size, reader) > 0) {
      std::string text(line, std::strcspn(line, "\n"));
      if (text.rfind("port ", 0) == 0) port_ = static_cast<uint16_t>(std::stoi(text.substr(5)));
      if (text.rfind("error ", 0) == 0) error_ = text.substr(6);
      if (text.rfind("lease ", 0) != 0) continue;
      if (auto parsed = transport::parse_descriptor(from_hex(text.substr(6))))
        descriptor_ = *parsed;
    }
    std::free(line);
    std::fclose(reader);
  }
  ~PeerProcess() {
    if (stdin_ >= 0) ::close(stdin_);
    if (pid_ > 0) end(SIGKILL);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  bool started() const { return !descriptor_.ranges.empty(); }
  const std::string& error() const { return error_; }
  uint16_t port() const { return port_; }
  /// Of the whole region, under a lease.
  const transport::RegionDescriptor& descriptor() const { return descriptor_; }

  void signal(int number) const { ::kill(pid_, number); }
  /// Returns when it has stopped: the signal alone lets it run on for a moment.
  void stop() const {
    signal(SIGSTOP);
    int status = 0;
    ::waitpid(pid_, &status, WUNTRACED);
  }
  void end(int number) {
    signal(number);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  /// Lets it end by itself; its exit status.
  int finish() {
    ::close(stdin_);
    stdin_ = -1;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int stdin_ = -1;
  uint16_t port_ = 0;
  std::string error_;
  transport::RegionDescriptor descriptor_;
};

}  // namespace cedar::test
