#include "model/chat_format.h"

#include <array>

#include "model/chat_fields.h"
#include "model/chat_template.h"
#include "model/chat_turns.h"
#include "model/tokenizer.h"

namespace cedar::model {
namespace {

using nlohmann::ordered_json;

/// Collects the text and remembers which of its bytes are the layout's own control tokens.
class PromptWriter {
 public:
  void control(std::string_view token) {
    prompt_.controls.push_back({prompt_.text.size(), token.size()});
    prompt_.text += token;
  }

  /// A caller's text.
  void text(std::string_view text) { prompt_.text += text; }

  /// A fixed text, which may spell control tokens.
  void layout(std::string_view text) {
    constexpr std::array kSpelled = {chat_token::kDsml, chat_token::kThinkBegin,
                                     chat_token::kThinkEnd};
    while (!text.empty()) {
      size_t at = text.size(), length = 0;
      for (const std::string_view token : kSpelled) {
        if (const size_t found = text.find(token); found < at) {
          at = found;
          length = token.size();
        }
      }
      prompt_.text += text.substr(0, at);
      if (length > 0) control(text.substr(at, length));
      text.remove_prefix(at + length);
    }
  }

  void image(std::string_view source) {
    control(chat_token::kImage);
    prompt_.images.emplace_back(source);
  }

  ChatPrompt prompt_;
};

/// Writes the turns of one conversation.
class ConversationWriter {
 public:
  ConversationWriter(const std::vector<ChatTurn>& turns, const ChatOptions& options)
      : turns_(turns), options_(options) {
    bool tools_declared = false;
    for (size_t i = 0; i < turns.size(); ++i) {
      tools_declared |= !turns[i].schemas.empty();
      if (opens_answer(i)) last_user_ = static_cast<int64_t>(i);
    }
    dropping_ = options.drop_thinking && !tools_declared;
  }

  ChatPrompt write() {
    out_.control(chat_token::kBos);
    for (size_t i = 0; i < turns_.size(); ++i) {
      write_opening(i);
      write_turn(i);
      write_header_after(i);
    }
    out_.prompt_.starts_in_reasoning = in_reasoning_;
    return std::move(out_.prompt_);
  }

 private:
  /// User turns, and system turns after the first message.
  bool opens_answer(size_t i) const {
    return turns_[i].role == TurnRole::user || (turns_[i].role == TurnRole::system && i > 0);
  }

  void write_opening(size_t i) {
    const bool is_system = turns_[i].role == TurnRole::system;
    if (is_system || (i == 0 && options_.thinking)) out_.control(chat_token::kSystem);
    if (i == 0 && options_.thinking) {
      out_.layout(kEffortPrefix);
      out_.layout(std::to_string(options_.effort));
      out_.layout(kEffortSuffix);
    }
  }

  void write_turn(size_t i) {
    const ChatTurn& turn = turns_[i];
    switch (turn.role) {
      case TurnRole::system: write_system(turn); break;
      case TurnRole::user:
        out_.control(chat_token::kUser);
        write_parts(turn.parts);
        break;
      case TurnRole::reminder:
        out_.control(chat_token::kReminder);
        write_parts(turn.parts);
        break;
      case TurnRole::assistant: write_assistant(i); break;
    }
  }

  void write_system(const ChatTurn& turn) {
    write_parts(turn.parts);
    if (!turn.schemas.empty()) {
      out_.layout(kParagraph);
      out_.layout(kToolsPrefix);
      for (size_t i = 0; i < turn.schemas.size(); ++i) {
        if (i > 0) out_.layout("\n");
        out_.text(turn.schemas[i]);
      }
      out_.layout(kToolsSuffix);
    }
    if (turn.response_format) {
      out_.layout(kParagraph);
      out_.layout(kResponseFormat);
      out_.text(*turn.response_format);
    }
  }

  void write_assistant(size_t i) {
    const ChatTurn& turn = turns_[i];
    const bool answers_task = i > 0 && !turns_[i - 1].task.empty();
    if (options_.thinking && !answers_task &&
        (!dropping_ || static_cast<int64_t>(i) > last_user_)) {
      out_.text(turn.reasoning);
      out_.control(chat_token::kThinkEnd);
    }
    write_parts(turn.parts);
    write_calls(turn.calls);
    if (!turn.without_eos) out_.control(chat_token::kEos);
    in_reasoning_ = false;
  }

  void write_parts(const std::vector<ContentPart>& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) out_.layout(kParagraph);
      switch (parts[i].kind) {
        case ContentPart::Kind::text: out_.text(parts[i].text); break;
        case ContentPart::Kind::image: out_.image(parts[i].text); break;
        case ContentPart::Kind::tool_result:
          out_.layout("<tool_result>");
          write_parts(parts[i].result);
          out_.layout("</tool_result>");
          break;
      }
    }
  }

  void write_calls(const std::vector<ToolCall>& calls) {
    if (calls.empty()) return;
    out_.layout("\n\n<｜DSML｜ calls>\n");
    for (const ToolCall& call : calls) {
      out_.layout("<｜DSML｜ invoke name=\"");
      out_.text(call.name);
      out_.layout("\">\n");
      for (size_t i = 0; i < call.parameters.size(); ++i) {
        if (i > 0) out_.layout("\n");
        write_parameter(call.parameters[i]);
      }
      out_.layout("\n</｜DSML｜ invoke>\n");
    }
    out_.layout("</｜DSML｜ calls>");
  }

  void write_parameter(const CallParameter& parameter) {
    out_.layout("<｜DSML｜ parameter name=\"");
    out_.text(parameter.name);
    out_.layout(parameter.is_string ? "\" string=\"true\">" : "\" string=\"false\">");
    out_.text(parameter.value);
    out_.layout("</｜DSML｜ parameter>");
  }

  /// The assistant's header belongs to the turn before it.
  void write_header_after(size_t i) {
    const bool is_last = i + 1 == turns_.size();
    if (!is_last && turns_[i + 1].role != TurnRole::assistant &&
        turns_[i + 1].role != TurnRole::reminder) {
      return;
    }
    const std::string& task = turns_[i].task;
    if (!task.empty()) {
      if (task == "action") write_header(options_.thinking);
      out_.control("<｜" + task + "｜>");
      in_reasoning_ = false;
    } else if (opens_answer(i)) {
      write_header(options_.thinking && (!dropping_ || static_cast<int64_t>(i) >= last_user_));
    }
  }

  void write_header(bool reasoning) {
    out_.control(chat_token::kAssistant);
    out_.control(reasoning ? chat_token::kThinkBegin : chat_token::kThinkEnd);
    in_reasoning_ = reasoning;
  }

  const std::vector<ChatTurn>& turns_;
  const ChatOptions& options_;
  PromptWriter out_;
  int64_t last_user_ = -1;
  bool dropping_ = false;  // reasoning before the last user turn is left out
  bool in_reasoning_ = false;
};

size_t count(std::string_view text, std::string_view word) {
  size_t n = 0;
  for (size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + word.size()))
    ++n;
  return n;
}

}  // namespace

Result<ChatPrompt> render_chat(const ordered_json& messages, const ChatOptions& options) {
  if (options.effort < 1 || options.effort > 100) {
    return field_error("reasoning_effort", "expected 1 to 100", ordered_json(options.effort));
  }
  CEDAR_TRY(ChatTurns turns, read_chat_turns(messages, options));
  ChatPrompt prompt = ConversationWriter(turns.turns, options).write();
  prompt.replaced_placeholders = turns.replaced_placeholders;
  // Two messages that meet without a token between them (wo_eos) could spell one together.
  if (count(prompt.text, chat_token::kImage) != prompt.images.size()) {
    return field_error("messages", "texts of two messages together spell the image placeholder");
  }
  return prompt;
}

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, const ChatPrompt& prompt,
                                   ControlTokens policy) {
  if (policy == ControlTokens::anywhere) return tokenizer.encode(prompt.text);
  const std::string_view text = prompt.text;
  std::vector<TokenId> ids;
  const auto encode_text = [&](size_t begin, size_t end) {
    const auto part = tokenizer.encode(text.substr(begin, end - begin), /*added_tokens=*/false);
    ids.insert(ids.end(), part.begin(), part.end());
  };
  size_t done = 0;
  for (const ControlSpan& span : prompt.controls) {
    const TokenId id = tokenizer.added_token_id(text.substr(span.offset, span.length));
    if (id < 0) continue;  // a vocabulary without this token reads it as text, with its neighbours
    encode_text(done, span.offset);
    ids.push_back(id);
    done = span.offset + span.length;
  }
  encode_text(done, text.size());
  return ids;
}

}  // namespace cedar::model
