#pragma once
// One request of `cedar generate` from its JSON to its result line.

#include <nlohmann/json.hpp>

#include <string>

#include "engine/decode_engine.h"
#include "gateway/answer_json.h"
#include "gateway/prepare.h"
#include "gateway/token_stream.h"

namespace cedar::apps {

using Json = nlohmann::ordered_json;

/// A body with "messages" is a chat, one with "prompt" a completion; `defaults` fills fields the body does
/// not have. Errors: those of the API; invalid_argument with neither or both of them.
Result<gateway::PreparedRequest> prepare_job(Json body, const Json& defaults,
                                             const gateway::ModelCard& card);

class GenerateJob {
 public:
  /// `line`: where the request stands in its file; 0: in none.
  GenerateJob(Json id, uint64_t line, gateway::PreparedRequest request,
              const gateway::ModelCard& card);

  engine::DecodeRequest sequence() const { return request_.sequence(0); }
  /// The text of the answer that `event` settles. After the last event done() holds.
  std::string on_token(const engine::TokenEvent& event);
  /// Ends the job with an error instead of an answer.
  void fail(std::string error) {
    error_ = std::move(error);
    done_ = true;
  }
  bool done() const { return done_; }
  /// A stop string ended the answer; the engine has to be told.
  bool stopped_early() const { return stream_.stopped(); }
  const std::string& error() const { return error_; }

  /// {"id", "text", "ids", "usage", ...}, or an error_line.
  std::string result_line() const;

  int64_t prompt_tokens() const { return static_cast<int64_t>(request_.prompt.size()); }
  int64_t written_tokens() const { return static_cast<int64_t>(ids_.size()); }

 private:
  std::string absorb(const gateway::TextPiece& piece);

  Json id_;
  uint64_t line_;
  gateway::PreparedRequest request_;
  gateway::TokenStream stream_;
  const gateway::ModelCard& card_;
  model::ParsedMessage message_;
  std::vector<gateway::TokenReport> reports_;
  std::vector<TokenId> ids_;
  std::string error_;
  bool done_ = false;
};

/// {"id", "line", "error"}; without "line" when that is 0.
std::string error_line(const Json& id, uint64_t line, const std::string& error);

}  // namespace cedar::apps
