#pragma once
// A file of requests through one engine, many at a time.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/generate_job.h"
#include "apps/output_file.h"
#include "apps/text_input.h"
#include "engine/engine.h"

namespace cedar::apps {

struct BatchCounts {
  int64_t answers = 0;
  int64_t errors = 0;
  int64_t tokens_read = 0;
  int64_t tokens_written = 0;
};

class GenerateBatch {
 public:
  /// `defaults`: fields for requests that do not have them; `window`: requests handed to the engine at a time.
  GenerateBatch(engine::Engine& engine, const gateway::ModelCard& card, Json defaults,
                size_t window)
      : engine_(engine), card_(card), defaults_(std::move(defaults)), window_(window) {}

  /// One line of `out` for every line of `in` that is not blank, in their order; a line that cannot be answered gives
  /// {"id", "line", "error"}. A request without "id" has the number of its line as id. Errors: the engine failed,
  /// which ends every request with an error line; `in` could not be read; `out` could not be written.
  Status run(LineReader& in, OutputFile& out);
  const BatchCounts& counts() const { return counts_; }

 private:
  /// Waits for its turn to be written; `result` is set when it has ended.
  struct Entry {
    std::unique_ptr<GenerateJob> job;
    std::string result;
  };

  Status read_and_answer(LineReader& in, OutputFile& out);
  void submit(const std::string& line, uint64_t number);
  Status step();
  void end(Entry& entry, std::string result, bool failed);
  void end_all(const Error& error);
  void write_ready(OutputFile& out);

  engine::Engine& engine_;
  const gateway::ModelCard& card_;
  Json defaults_;
  size_t window_;
  std::map<uint64_t, Entry> entries_;  // by the number of their line
  std::vector<RequestId> ended_;
  size_t finished_ = 0;  // of entries_
  BatchCounts counts_;
};

}  // namespace cedar::apps
