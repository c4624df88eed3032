// `cedar chat`: a terminal client over WebSocket.

#include <unistd.h>

#include <CLI/CLI.hpp>

#include <cstdio>
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/api_key.h"
#include "apps/commands.h"
#include "apps/options.h"
#include "apps/stream_client.h"
#include "apps/terminal_text.h"
#include "apps/text_input.h"
#include "apps/text_table.h"
#include "model/utf8.h"

namespace cedar::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kInterrupted = 130;  // as a shell says of a program that SIGINT ended

struct Arguments {
  std::string url = "ws://127.0.0.1:8080/v1/stream";
  std::string prompt;
  bool has_prompt = false;  // an empty one is a message, too
  std::string file;
  std::string ca_file;
  std::string key_file;
  std::string thinking;
  std::string effort;
  std::string system;
  int64_t max_tokens = 0;
  double temperature = 0;
};

int fail(const Error& error) {
  std::fprintf(stderr, "cedar chat: %s\n", printable(error.message()).c_str());
  return error.code == Errc::cancelled ? kInterrupted : 1;
}

/// Returns the option of the prompt, whose presence counts.
CLI::Option* declare(CLI::App& app, Arguments& a) {
  app.add_option("--url", a.url,
                 "the server's WebSocket address (default ws://127.0.0.1:8080/v1/stream)");
  app.add_option("--ca", a.ca_file,
                 "with wss://: PEM file of who signs the server's certificate (default: whom the "
                 "system trusts)");
  app.add_option("--api-key-file", a.key_file,
                 "file whose first line is the API key (default: variable CEDAR_API_KEY)");
  app.add_option("--file", a.file,
                 "text that goes before the first question; - reads standard input");
  app.add_option("--system", a.system, "system message");
  app.add_option("--max-tokens", a.max_tokens, "limit of an answer")
      ->check(integer_in(1, INT32_MAX));
  app.add_option("--temperature", a.temperature, "default 0: greedy")->check(number_in(0, 2));
  app.add_option("--thinking", a.thinking, "default: the server's choice")
      ->check(CLI::IsMember({"on", "off"}));
  app.add_option("--effort", a.effort, "reasoning effort: low, medium, high, max");
  return app.add_option("prompt,--prompt", a.prompt,
                        "what to ask; without it, a conversation when this is a terminal");
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
      // The answer may hold what would rule the terminal, whether it is this one or the one behind a pipe.
      std::fputs(printable(piece).c_str(), stdout);
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
    std::string line;
    if (counts.status != ResponseStatus::completed) {
      line.append(to_string(counts.status)).append("; ");
    }
    const std::string prompt = std::to_string(counts.prompt_tokens);
    if (!counts.prompt_read) {
      line += "prompt of " + prompt + " tokens, not read to its end";
    } else if (!counts.first_token_s) {
      line += prompt + " tokens read, nothing written";
    } else {
      line += prompt + " tokens read, first token after " + fixed(*counts.first_token_s, 2) +
              " s, " + std::to_string(counts.completion_tokens) + " written" +
              rate_text(counts.completion_tokens, counts.last_token_s - *counts.first_token_s);
    }
    std::fprintf(stderr, "[%s]\n", line.c_str());
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
      status = fail(asked.error());
      const Errc code = asked.error().code;
      if (code == Errc::unavailable || code == Errc::cancelled)
        break;  // the connection is of no use
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
    fail(url.error());
    return 2;
  }
  StreamAccess access;
  access.ca_file = a.ca_file;
  if (!a.ca_file.empty() && !url->secure) {
    fail(make_error(Errc::invalid_argument, "--ca: is for wss:// only, got " + url->text()));
    return 2;
  }
  auto key = read_api_key(a.key_file);
  if (!key) return fail(key.error());
  access.key = std::move(*key);
  std::string document;
  if (!a.file.empty()) {
    auto text = read_text(a.file);
    if (!text) return fail(text.error());
    document = std::move(*text);
    // One empty line between document and question, as the demo model has learned it.
    document.erase(document.find_last_not_of('\n') + 1);
    if (!document.empty()) document += !a.has_prompt && a.file == "-" ? "" : "\n\n";
  }
  if (!a.has_prompt && a.file.empty() && isatty(STDIN_FILENO) != 1) {
    return fail(
        make_error(Errc::invalid_argument, "nothing to ask: give a prompt, --file, or a terminal"));
  }
  const auto client = StreamClient::connect(*url, access);
  if (!client) return fail(client.error());
  Conversation conversation(a, **client);
  if (!a.has_prompt && a.file != "-") return converse(conversation, document);
  const Status asked = conversation.ask(document + a.prompt);
  return asked ? 0 : fail(asked.error());
}

}  // namespace

int run_chat(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Talks to a server over WebSocket.", "cedar chat");
  const CLI::Option* prompt = declare(app, arguments);
  if (const auto status = parse_options(app, argc, argv)) return *status;
  arguments.has_prompt = prompt->count() > 0;
  return chat(arguments);
}

}  // namespace cedar::apps
