#include "engine/prefill_queue.h"

#include <algorithm>
#include <utility>

#include "engine/request_checks.h"

namespace cedar::engine {
namespace {

/// A request that has waited this many steps goes before shorter ones.
constexpr int32_t kAgeLimitSteps = 32;

}  // namespace

void PrefillQueue::add(PrefillRequest request) {
  const RequestId id = request.id;
  Prompt& prompt = prompts_[id];
  prompt.held = request.cached_blocks > 0;
  prompt.request = std::move(request);
}

void PrefillQueue::resume(RequestId id, Position start) {
  Prompt& prompt = prompts_.at(id);
  prompt.given = start;
  prompt.held = false;
}

PrefillQueue::Next PrefillQueue::next(int64_t budget) {
  std::vector<Prompt*> waiting;
  for (auto& [id, prompt] : prompts_) {
    if (prompt.can_go_on()) waiting.push_back(&prompt);
  }
  std::sort(waiting.begin(), waiting.end(), [](const Prompt* a, const Prompt* b) {
    const bool a_old = a->waited >= kAgeLimitSteps;
    const bool b_old = b->waited >= kAgeLimitSteps;
    if (a_old != b_old) return a_old;
    return a->left() != b->left() ? a->left() < b->left() : a->request.id < b->request.id;
  });
  Next next;
  for (Prompt* prompt : waiting) {
    const int64_t rows = std::min(budget, prompt->left());
    prompt->waited = rows > 0 ? 0 : prompt->waited + 1;
    if (rows == 0) continue;
    const PrefillRequest& request = prompt->request;
    BatchSequence sequence = make_sequence(config_, request.tokens, prompt->given, rows);
    next.chunk.parts.push_back({request.id, static_cast<Position>(request.tokens.size()),
                                prompt->given, std::move(sequence.tokens),
                                std::move(sequence.history)});
    append_image_rows(request.images, config_.hidden_size, prompt->given, rows,
                      next.images.override_index, next.images.rows);
    prompt->given += rows;
    budget -= rows;
  }
  if (next.images.rows.empty()) next.images.override_index.clear();
  return next;
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
