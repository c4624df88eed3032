#include "apps/generate_batch.h"

#include <string_view>
#include <utility>

namespace cedar::apps {
namespace {

/// A line is one line: the parser's "line 1" would be taken for the file's.
std::string without_parser_line(std::string text) {
  constexpr std::string_view kLine = "at line 1, ";
  const size_t at = text.find(kLine);
  if (at != std::string::npos) text.replace(at, kLine.size(), "at ");
  return text;
}

}  // namespace

Status GenerateBatch::run(LineReader& in, OutputFile& out) {
  const Status status = read_and_answer(in, out);
  if (!status) end_all(status.error());
  write_ready(out);
  CEDAR_CHECK_OK(out.commit());
  return status;
}

Status GenerateBatch::read_and_answer(LineReader& in, OutputFile& out) {
  for (uint64_t number = 1; out.ok(); ++number) {
    CEDAR_TRY(const auto line, in.next());
    if (!line) break;
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    submit(*line, number);
    while (entries_.size() - finished_ >= window_) CEDAR_CHECK_OK(step());
    write_ready(out);
  }
  while (finished_ < entries_.size() && out.ok()) {
    CEDAR_CHECK_OK(step());
    write_ready(out);
  }
  return {};
}

void GenerateBatch::submit(const std::string& line, uint64_t number) {
  Json id = number;
  Entry& entry = entries_[number];
  const auto body = gateway::read_body(line);
  if (body && body->contains("id")) id = body->at("id");
  auto prepared =
      body ? prepare_job(*body, defaults_, card_) : Result<gateway::PreparedRequest>(body.error());
  if (!prepared) {
    const std::string problem = without_parser_line(prepared.error().message());
    return end(entry, error_line(id, number, problem), true);
  }
  entry.job = std::make_unique<GenerateJob>(std::move(id), number, std::move(*prepared), card_);
  engine::DecodeRequest request = entry.job->sequence();
  request.id = RequestId{number};
  const Status status = engine_.submit(std::move(request), {}, [this, &entry](const auto& event) {
    entry.job->on_token(event);
    if (entry.job->done()) ended_.push_back(event.id);
  });
  if (status) return;
  entry.job->fail(status.error().message());
  end(entry, entry.job->result_line(), true);
}

/// Errors: the engine failed.
Status GenerateBatch::step() {
  CEDAR_CHECK_OK(engine_.step());
  for (const RequestId id : std::exchange(ended_, {})) {
    const auto found = entries_.find(id.value);
    if (found == entries_.end() || !found->second.job) continue;
    Entry& entry = found->second;
    if (entry.job->stopped_early()) engine_.cancel(id);
    counts_.tokens_read += entry.job->prompt_tokens();
    counts_.tokens_written += entry.job->written_tokens();
    end(entry, entry.job->result_line(), !entry.job->error().empty());
  }
  return {};
}

void GenerateBatch::end(Entry& entry, std::string result, bool failed) {
  entry.result = std::move(result);
  entry.job.reset();
  ++finished_;
  ++(failed ? counts_.errors : counts_.answers);
}

void GenerateBatch::end_all(const Error& error) {
  for (auto& [number, entry] : entries_) {
    if (!entry.job) continue;  // ended
    entry.job->fail(error.message());
    end(entry, entry.job->result_line(), true);
  }
}

void GenerateBatch::write_ready(OutputFile& out) {
  while (!entries_.empty() && !entries_.begin()->second.result.empty()) {
    out.write(entries_.begin()->second.result + '\n');
    entries_.erase(entries_.begin());
    --finished_;
  }
  out.flush();
}

}  // namespace cedar::apps
