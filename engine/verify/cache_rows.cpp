#include "engine/verify/cache_rows.h"

#include <algorithm>
#include <string>

#include "kernels/quantize.h"

namespace cedar::engine::verify {
namespace {

void append_row(kernels::RowFormat format, const uint8_t* packed, int64_t columns,
                std::vector<float>& out) {
  std::vector<Bf16> row(static_cast<size_t>(columns));
  kernels::dequantize_row(format, packed, columns, row.data());
  const std::vector<float> wide = widen(row.data(), columns);
  out.insert(out.end(), wide.begin(), wide.end());
}

std::vector<float> paged(Session& session, SequenceStore& store, kernels::PagedRows rows_view,
                         SequenceSlot slot, kernels::RowFormat format, int64_t columns,
                         int64_t rows) {
  // The sequence's pages side by side.
  std::vector<uint8_t> pages;
  std::vector<int32_t> table;
  for (BlockId page : store.pages(slot)) {
    const auto* data = reinterpret_cast<const uint8_t*>(store.pool().data(page));
    const std::vector<uint8_t> bytes = output(session.ctx(), data, store.pool().block_bytes());
    pages.insert(pages.end(), bytes.begin(), bytes.end());
    table.push_back(static_cast<int32_t>(table.size()));
  }
  rows_view.base = pages.data();
  rows_view.page_table = table.data();
  rows_view.max_pages = std::ssize(table);
  std::vector<float> out;
  for (int64_t j = 0; j < rows; ++j) append_row(format, rows_view.row(0, j), columns, out);
  return out;
}

class CacheComparison {
 public:
  CacheComparison(Session& session, GoldenFile& file, const Prompt& prompt)
      : session_(session), file_(file), prefix_(prompt.name + ".") {}

  /// Compares every "{p}.layer{i}.`suffix`" of shape [rows(layer), columns] with values(layer). A layer for
  /// which rows() gives -1 has no such cache.
  template <class RowCount, class Values>
  void run(const Kind& kind, const std::string& suffix, DType dtype, int64_t columns,
           const RowCount& row_count, const Values& values) {
    for (const LayerTensor& entry : file_.layer_tensors(prefix_, suffix)) {
      const int64_t rows = session_.has_layer(entry.layer) ? row_count(entry.layer) : -1;
      if (rows < 0) continue;  // stays unread, and is reported as such
      const TensorView* expected = file_.tensor(entry.name, dtype, {rows, columns});
      if (expected == nullptr) continue;
      session_.report().check(kind, relative_l2(values(entry.layer, rows), floats(*expected)),
                              entry.name);
    }
  }

 private:
  Session& session_;
  GoldenFile& file_;
  std::string prefix_;
};

}  // namespace

std::vector<float> main_kv_rows(Session& session, SequenceStore& store, SequenceSlot slot,
                                int64_t source, int64_t rows) {
  return paged(session, store, store.main_rows(source), slot, kernels::RowFormat::q4n,
               session.config().head_dim, rows);
}

std::vector<float> index_key_rows(Session& session, SequenceStore& store, SequenceSlot slot,
                                  int64_t source, int64_t rows) {
  return paged(session, store, store.index_rows(source), slot, kernels::RowFormat::q4x,
               session.config().index_head_dim, rows);
}

std::vector<float> ring_rows(Session& session, const kernels::WindowRings& rings, SequenceSlot slot,
                             int64_t rows) {
  std::vector<float> out;
  const std::vector<uint8_t> ring =
      output(session.ctx(), rings.row(slot.value, 0), rows * rings.row_bytes);
  for (int64_t i = 0; i < rows; ++i) {
    append_row(kernels::RowFormat::q8, ring.data() + i * rings.row_bytes, session.config().head_dim,
               out);
  }
  return out;
}

std::vector<float> open_rows(Session& session, const float* pending, SequenceSlot slot,
                             int64_t ratio, int64_t rows) {
  const int64_t columns = session.config().head_dim;
  const float* begin = pending + slot.value * (ratio - 1) * columns;
  return output(session.ctx(), begin, rows * columns);
}

void check_caches(Session& session, SequenceStore& store, SequenceSlot slot, const Prompt& prompt,
                  const CacheKinds& kinds) {
  GoldenFile* file = session.golden().file("caches");
  if (file == nullptr) return;
  const model::ModelConfig& config = session.config();
  const model::ModelPlan& plan = session.model().plan;
  const int64_t n = prompt.length();
  const auto layer_plan = [&](LayerId layer) -> const model::LayerPlan& {
    return plan.layers[static_cast<size_t>(layer)];
  };
  const auto source_rows = [&](LayerId layer) {
    return layer_plan(layer).writes_kv() ? n / layer_plan(layer).ratio : -1;
  };
  const auto open_count = [&](LayerId layer) {
    const bool pools = layer_plan(layer).writes_kv() && layer_plan(layer).ratio > 1;
    return pools ? n % layer_plan(layer).ratio : -1;
  };
  CacheComparison compare(session, *file, prompt);
  compare.run(
      kinds.window, "window_kv", DType::bf16, config.head_dim,
      [&](LayerId) { return std::min(n, config.sliding_window); },
      [&](LayerId layer, int64_t rows) {
        return ring_rows(session, store.rings(layer), slot, rows);
      });
  compare.run(kinds.main_kv, "main_kv", DType::bf16, config.head_dim, source_rows,
              [&](LayerId layer, int64_t rows) {
                return main_kv_rows(session, store, slot, plan.source_index(layer), rows);
              });
  compare.run(kinds.index_keys, "index_k", DType::bf16, config.index_head_dim, source_rows,
              [&](LayerId layer, int64_t rows) {
                return index_key_rows(session, store, slot, plan.source_index(layer), rows);
              });
  compare.run(kinds.open_group, "kv_state", DType::f32, config.head_dim, open_count,
              [&](LayerId layer, int64_t rows) {
                return open_rows(session, store.pending_kv(plan.source_index(layer)), slot,
                                 layer_plan(layer).ratio, rows);
              });
  compare.run(kinds.open_group, "score_state", DType::f32, config.head_dim, open_count,
              [&](LayerId layer, int64_t rows) {
                return open_rows(session, store.pending_gate(plan.source_index(layer)), slot,
                                 layer_plan(layer).ratio, rows);
              });
}

}  // namespace cedar::engine::verify
