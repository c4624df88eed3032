// `cedar chat`: a terminal client over WebSocket.

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/stream_client.h"
#include "model/utf8.h"

namespace cedar::apps {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string url = "ws://127.0.0.1:8080/v1/stream";
  std::string prompt;
  std::string file;
  std::string thinking;
  std::string effort;
  std::string system;
  int64_t max_tokens = 0;
  double temperature = 0;
};

int fail(const std::string& message) {
  std::fprintf(stderr, "cedar chat: %s\n", message.c_str());
  return 1;
}

void declare(CLI::App& app, Arguments& a) {
  app.add_option("--url", a.url,
                 "the server's WebSocket address (default ws://127.0.0.1:8080/v1/stream)");
  app.add_option("prompt,--prompt", a.prompt,
                 "what to ask; without it, a conversation when this is a terminal");
  app.add_option("--file", a.file,
                 "text that goes before the first question; - reads standard input");
  app.add_option("--system", a.system, "system message");
  app.add_option("--max-tokens", a.max_tokens, "limit of an answer")->check(CLI::PositiveNumber);
  app.add_option("--temperature", a.temperature, "default 0: greedy")->check(CLI::Range(0.0, 2.0));
  app.add_option("--thinking", a.thinking, "default: the server's choice")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--effort", a.effort, "reasoning effort: low, medium, high, max");
}

Result<std::string> read_text(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) return make_error(Errc::io_error, "cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

class Conversation {
 public:
  Conversation(const Arguments& arguments, StreamClient& client)
      : arguments_(arguments), client_(client), dim_(isatty(STDOUT_FILENO) == 1) {
    if (!arguments.system.empty()) add("system", model::sanitize_utf8(arguments.system));
  }

  /// Streams the answer to stdout and the figures to stderr; both turns are remembered.
  Status ask(const std::string& text) {
    add("user", model::sanitize_utf8(text));
    std::string answer;
    bool was_reasoning = false;
    const auto show = [&](std::string_view piece, bool reasoning) {
      if (!reasoning) answer.append(piece);
      if (reasoning && !dim_) return;  // output that goes to a file holds the answer only
      if (dim_ && reasoning != was_reasoning)
        std::fputs(reasoning ? "\033[2m" : "\033[0m\n", stdout);
      was_reasoning = reasoning;
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    };
    const auto counts = client_.run(request().dump(), show);
    if (dim_ && was_reasoning) std::fputs("\033[0m", stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
    if (!counts) {
      messages_.erase(messages_.size() - 1);
      return counts.error();
    }
    add("assistant", answer);
    print_figures(*counts);
    return {};
  }

 private:
  void add(const char* role, const std::string& content) {
    messages_.push_back(Json{{"role", role}, {"content", content}});
  }

  Json request() const {
    Json body{{"messages", messages_}, {"temperature", arguments_.temperature}};
    if (arguments_.max_tokens > 0) body["max_tokens"] = arguments_.max_tokens;
    if (!arguments_.effort.empty()) body["reasoning_effort"] = arguments_.effort;
    if (!arguments_.thinking.empty()) {
      body["thinking"] = {{"type", arguments_.thinking == "on" ? "enabled" : "disabled"}};
    }
    return body;
  }

  static void print_figures(const StreamCounts& counts) {
    const double writing_s = std::max(counts.total_s - counts.first_token_s, 1e-9);
    const double after_first =
        static_cast<double>(std::max<int64_t>(counts.completion_tokens - 1, 0));
    std::fprintf(stderr,
                 "[%s%lld tokens read, first token after %.2f s, %lld written, %.1f tokens/s]\n",
                 counts.status == "completed" ? "" : (counts.status + "; ").c_str(),
                 static_cast<long long>(counts.prompt_tokens), counts.first_token_s,
                 static_cast<long long>(counts.completion_tokens), after_first / writing_s);
  }

  const Arguments& arguments_;
  StreamClient& client_;
  bool dim_;
  Json messages_ = Json::array();
};

/// Questions from standard input until its end.
int converse(Conversation& conversation, std::string document) {
  const bool prompt_shown = isatty(STDIN_FILENO) == 1;
  std::string line;
  int status = 0;
  while (true) {
    if (prompt_shown) std::fputs("> ", stderr);
    if (!std::getline(std::cin, line)) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Status asked = conversation.ask(document + line);
    if (!asked) {
      status = fail(asked.error().message());
      const Errc code = asked.error().code;
      if (code == Errc::unavailable || code == Errc::cancelled) break;  // no connection any more
      continue;
    }
    document.clear();  // it is part of the first question, which stays in the conversation
  }
  if (prompt_shown) std::fputc('\n', stderr);
  return status;
}

int chat(const Arguments& a) {
  const auto url = parse_ws_url(a.url);
  if (!url) {
    fail(url.error().message());
    return 2;
  }
  std::string document;
  if (!a.file.empty()) {
    auto text = read_text(a.file);
    if (!text) return fail(text.error().message());
    document = std::move(*text);
    // One empty line between document and question, as the demo model has learned it.
    document.erase(document.find_last_not_of('\n') + 1);
    if (!document.empty()) document += a.prompt.empty() && a.file == "-" ? "" : "\n\n";
  }
  if (a.prompt.empty() && a.file.empty() && isatty(STDIN_FILENO) != 1) {
    return fail("nothing to ask: give a prompt, --file, or a terminal");
  }
  const auto client = StreamClient::connect(*url);
  if (!client) return fail(client.error().message());
  Conversation conversation(a, **client);
  if (a.prompt.empty() && a.file != "-") return converse(conversation, document);
  const Status asked = conversation.ask(document + a.prompt);
  return asked ? 0 : fail(asked.error().message());
}

}  // namespace

int run_chat(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Talks to a server over WebSocket.", "cedar chat");
  declare(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error);
    return status == 0 ? 0 : 2;
  }
  return chat(arguments);
}

}  // namespace cedar::apps
