#include "engine/step_batch.h"

#include <algorithm>
#include <set>
#include <string>

#include "engine/upload.h"

namespace cedar::engine {
namespace {

void fill_windows(UploadBatch& uploads, int64_t window, StepBatch& batch) {
  std::vector<kernels::WindowSpan> spans;
  std::vector<int32_t> ring_slots;
  spans.reserve(static_cast<size_t>(batch.rows));
  ring_slots.reserve(static_cast<size_t>(batch.rows));
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const BatchSequence& sequence = batch.sequences[s];
    const int64_t first_row = batch.row_begin[s];
    for (Position p = sequence.start; p < sequence.end(); ++p) {
      const Position low = std::max(sequence.window_floor, p - window + 1);
      kernels::WindowSpan span;
      span.slot = sequence.slot.value;
      span.ring_begin = std::min(low, sequence.start);
      span.ring_end = sequence.start;
      span.chunk_begin =
          static_cast<int32_t>(first_row + std::max(low, sequence.start) - sequence.start);
      span.chunk_end = static_cast<int32_t>(first_row + p - sequence.start + 1);
      spans.push_back(span);
      const bool stays = sequence.writes_window && p >= sequence.end() - window;
      ring_slots.push_back(stays ? sequence.slot.value : -1);
    }
  }
  uploads.add(spans, &batch.spans);
  uploads.add(ring_slots, &batch.ring_slots);
}

void fill_compress_plan(UploadBatch& uploads, const StepBatch& batch, int64_t ratio,
                        int64_t padded_groups, CompressPlan& plan) {
  std::vector<int32_t> members, pending_rows, sequences;
  std::vector<int64_t> positions, targets;
  std::vector<int32_t> pending_target(static_cast<size_t>(batch.rows), -1);
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const BatchSequence& sequence = batch.sequences[s];
    if (!sequence.writes_global) continue;
    const int64_t first_row = batch.row_begin[s];
    const int64_t first_open = sequence.end() / ratio * ratio;
    const int64_t first_group = std::max(sequence.start, sequence.write_floor) / ratio;
    for (int64_t group = first_group; (group + 1) * ratio <= sequence.end(); ++group) {
      for (int64_t m = 0; m < ratio; ++m) {
        const Position p = group * ratio + m;
        const bool in_chunk = p >= sequence.start;
        members.push_back(static_cast<int32_t>(in_chunk ? first_row + p - sequence.start
                                                        : -1 - sequence.slot.value));
        pending_rows.push_back(static_cast<int32_t>(in_chunk ? 0 : m));
      }
      sequences.push_back(static_cast<int32_t>(s));
      positions.push_back(group * ratio);
      targets.push_back(group);
    }
    for (Position p = std::max({sequence.start, first_open, sequence.write_floor});
         p < sequence.end(); ++p) {
      pending_target[static_cast<size_t>(first_row + p - sequence.start)] =
          static_cast<int32_t>(sequence.slot.value * (ratio - 1) + p % ratio);
    }
  }
  // Padding: groups of the first row that nobody stores.
  while (static_cast<int64_t>(targets.size()) < padded_groups) {
    members.resize(members.size() + static_cast<size_t>(ratio), 0);
    pending_rows.resize(members.size(), 0);
    sequences.push_back(0);
    positions.push_back(0);
    targets.push_back(-1);
  }
  plan.ratio = ratio;
  plan.groups = static_cast<int64_t>(targets.size());
  uploads.add(members, &plan.members);
  uploads.add(pending_rows, &plan.pending_rows);
  uploads.add(positions, &plan.positions);
  uploads.add(targets, &plan.targets);
  uploads.add(sequences, &plan.sequences);
  uploads.add(pending_target, &plan.pending_target);
}

}  // namespace

const CompressPlan& StepBatch::compress_for(int64_t ratio) const {
  for (const CompressPlan& plan : compress) {
    if (plan.ratio == ratio) return plan;
  }
  assertion_failed("compress plan", __FILE__, __LINE__, "ratio " + std::to_string(ratio));
}

const RatioView& StepBatch::ratio(int64_t wanted) const {
  for (const RatioView& view : ratios) {
    if (view.ratio == wanted) return view;
  }
  assertion_failed("ratio view", __FILE__, __LINE__, "ratio " + std::to_string(wanted));
}

StepBatch make_step_batch(kernels::KernelContext& ctx, const LoadedModel& model,
                          const SequenceStore& store, std::vector<BatchSequence> sequences,
                          const StepShape* shape) {
  StepBatch batch;
  batch.sequences = std::move(sequences);
  if (shape != nullptr) {
    BatchSequence padding = batch.sequences.front();
    padding.writes_global = padding.writes_window = false;
    batch.sequences.resize(static_cast<size_t>(shape->rows), padding);
    batch.max_pages = shape->pages;
  }
  std::vector<int32_t> ids, row_sequence;
  std::vector<int64_t> boundary_targets;
  std::vector<uint8_t> image_mask;
  bool any_image = false;
  for (size_t s = 0; s < batch.sequences.size(); ++s) {
    const BatchSequence& sequence = batch.sequences[s];
    CEDAR_ASSERT(sequence.rows() > 0, "sequence without rows");
    batch.row_begin.push_back(batch.rows);
    batch.rows += sequence.rows();
    batch.max_pages =
        std::max(batch.max_pages, static_cast<int64_t>(store.pages(sequence.slot).size()));
    for (int64_t i = 0; i < sequence.rows(); ++i) {
      const TokenId id = sequence.tokens[static_cast<size_t>(i)];
      const Position position = sequence.start + i;
      ids.push_back(id);
      batch.positions_host.push_back(position);
      row_sequence.push_back(static_cast<int32_t>(s));
      const bool stored = sequence.writes_global && position >= sequence.write_floor;
      boundary_targets.push_back(stored ? position : -1);
      image_mask.push_back(model.is_image(id) ? 1 : 0);
      any_image = any_image || image_mask.back() != 0;
    }
  }
  std::vector<int32_t> page_table;
  for (const BatchSequence& sequence : batch.sequences) {
    const auto pages = store.pages(sequence.slot);
    for (BlockId page : pages) page_table.push_back(page.value);
    page_table.resize(page_table.size() + static_cast<size_t>(batch.max_pages) - pages.size(), -1);
  }
  const int64_t copies = model.config.hc_mult;
  std::vector<float> fresh_pre(static_cast<size_t>(batch.rows * copies), 0.0F);
  for (int64_t i = 0; i < batch.rows; ++i) fresh_pre[static_cast<size_t>(i * copies)] = 1.0F;
  UploadBatch uploads;
  uploads.add(fresh_pre, &batch.fresh_pre);
  uploads.add(ids, &batch.ids);
  uploads.add(batch.positions_host, &batch.positions);
  uploads.add(row_sequence, &batch.row_sequence);
  if (any_image) uploads.add(image_mask, &batch.image_mask);
  uploads.add(page_table, &batch.page_table);
  uploads.add(boundary_targets, &batch.boundary_targets);
  fill_windows(uploads, model.config.sliding_window, batch);

  std::set<int64_t> ratios;
  for (const model::KvSource& source : model.plan.kv_sources) ratios.insert(source.ratio);
  // The batch of uploads holds on to the elements' addresses.
  batch.compress.reserve(ratios.size());
  batch.ratios.reserve(ratios.size());
  for (int64_t ratio : ratios) {
    if (ratio > 1) {
      fill_compress_plan(uploads, batch, ratio, shape != nullptr ? shape->rows : 0,
                         batch.compress.emplace_back());
    }
    RatioView& view = batch.ratios.emplace_back();
    view.ratio = ratio;
    for (int64_t position : batch.positions_host) {
      view.visible_host.push_back((position + 1) / ratio);
      view.max_visible = std::max(view.max_visible, view.visible_host.back());
    }
    if (shape != nullptr) view.max_visible = ceil_div(shape->tokens, ratio);
    uploads.add(view.visible_host, &view.visible);
  }
  uploads.send(ctx);
  return batch;
}

}  // namespace cedar::engine
