#include "engine/prefill_queue.h"

#include <algorithm>
#include <utility>

#include "engine/request_checks.h"

namespace cedar::engine {
namespace {

/// A request that has waited this many steps goes before shorter ones.
constexpr int32_t kAgeLimitSteps = 32;

}  // namespace

void PrefillQueue::add(PrefillRequest request, Position stop) {
  const RequestId id = request.id;
  Prompt& prompt = prompts_[id];
  prompt.held = request.cached_blocks > 0;
  prompt.stop = stop;
  prompt.request = std::move(request);
}

void PrefillQueue::resume(RequestId id, Position start, Position stop) {
  Prompt& prompt = prompts_.at(id);
  prompt.given = start;
  prompt.stop = stop;
  prompt.held = false;
}

std::vector<PrefillQueue::Choice> PrefillQueue::choose(int64_t budget) const {
  std::vector<const Prompt*> waiting;
  for (const auto& [id, prompt] : prompts_) {
    if (prompt.can_go_on()) waiting.push_back(&prompt);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Prompt* a, const Prompt* b) {
    const bool a_old = a->waited >= kAgeLimitSteps;
    const bool b_old = b->waited >= kAgeLimitSteps;
    if (a_old != b_old) return a_old;
    return a->left() != b->left() ? a->left() < b->left() : a->request.id < b->request.id;
  });
  std::vector<Choice> chosen;
  for (const Prompt* prompt : waiting) {
    const int64_t rows = std::min(budget, prompt->next_rows());
    chosen.push_back({prompt->request.id, rows});
    budget -= rows;
  }
  return chosen;
}

PrefillRows PrefillQueue::rows_of(const Prompt& prompt, int64_t rows) const {
  const PrefillRequest& request = prompt.request;
  BatchSequence sequence = make_sequence(config_, request.tokens, prompt.given, rows);
  return {request.id, static_cast<Position>(request.tokens.size()), prompt.given,
          std::move(sequence.tokens), std::move(sequence.history)};
}

PrefillQueue::Next PrefillQueue::next(int64_t budget) {
  Next next;
  for (const auto& [id, rows] : choose(budget)) {
    Prompt& prompt = prompts_.at(id);
    prompt.waited = rows > 0 ? 0 : prompt.waited + 1;
    if (rows == 0) continue;
    next.chunk.parts.push_back(rows_of(prompt, rows));
    append_image_rows(prompt.request.images, config_.hidden_size, prompt.given, rows,
                      next.images.override_index, next.images.rows);
    prompt.given += rows;
  }
  if (next.images.rows.empty()) next.images.override_index.clear();
  return next;
}

PrefillChunk PrefillQueue::peek(int64_t budget) const {
  PrefillChunk chunk;
  for (const auto& [id, rows] : choose(budget)) {
    if (rows > 0) chunk.parts.push_back(rows_of(prompts_.at(id), rows));
  }
  return chunk;
}

bool PrefillQueue::idle() const {
  return std::all_of(prompts_.begin(), prompts_.end(),
                     [](const auto& entry) { return !entry.second.can_go_on(); });
}

int64_t PrefillQueue::rows_left() const {
  int64_t rows = 0;
  for (const auto& [id, prompt] : prompts_) rows += prompt.left();
  return rows;
}

}  // namespace cedar::engine
