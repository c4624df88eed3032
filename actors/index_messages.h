#pragma once
// What a stage and an indexer say to each other over transport/calls.h. Bytes only: keys, queries and findings are arrays
// that nobody wants inspected one by one. Little-endian.
//
//   append   part, place of the first block, layout, blocks, keys      -> nothing     opens the part with its first block
//   scan     questions, parts and how many of their blocks             -> findings
//   close    part                                                      -> nothing
//
// A part is the caller's: its number means nothing to others. It lives as long as its lease, which every call about it
// renews, and as the connection to its owner.

#include <cstdint>
#include <span>
#include <vector>

#include "core/result.h"
#include "engine/index_service.h"

namespace cedar::actors {

using Bytes = std::vector<std::byte>;

struct AppendKeys {
  uint64_t part = 0;
  int64_t first = 0;  // blocks that the part has already
  engine::IndexBlockLayout layout;
  std::vector<int32_t> blocks;
  std::span<const std::byte> keys;  // borrowed
};
Bytes serialise(const AppendKeys& message);
/// The keys stay in `bytes`. Errors: invalid_argument.
Result<AppendKeys> parse_append(std::span<const std::byte> bytes);

/// `rows` of the questions about the first `blocks` of a part's blocks.
struct ScanPart {
  uint64_t part = 0;
  int64_t blocks = 0;
  int64_t rows = 0;
};
struct ScanKeys {
  engine::IndexQuestions questions;
  std::vector<ScanPart> parts;  // in row order
  // What the questions point to, in a message that was parsed.
  std::vector<uint8_t> packed;
  std::vector<Bf16> head_weights;
  std::vector<int64_t> visible;
};
/// Starts a message; rows are added with add_rows().
class ScanWriter {
 public:
  explicit ScanWriter(const engine::IndexQuestions& like);
  /// Rows [begin, begin + part.rows) of `questions`.
  void add_rows(const ScanPart& part, const engine::IndexQuestions& questions, int64_t begin);
  Bytes take() const;

 private:
  engine::IndexQuestions like_;
  std::vector<ScanPart> parts_;
  std::vector<uint8_t> packed_;
  std::vector<Bf16> head_weights_;
  std::vector<int64_t> visible_;
};
/// Errors: invalid_argument, naming the field.
Result<ScanKeys> parse_scan(std::span<const std::byte> bytes);

Bytes serialise(const engine::IndexFindings& findings);
/// Findings of `visible.size()` rows that are safe to use, whoever sent them: no more than was asked for, in order, and of visible
/// keys. Errors: invalid_argument.
Result<engine::IndexFindings> parse_findings(std::span<const std::byte> bytes,
                                             const engine::IndexQuestions& asked,
                                             std::span<const int64_t> visible);

Bytes serialise_close(uint64_t part);
Result<uint64_t> parse_close(std::span<const std::byte> bytes);

}  // namespace cedar::actors
