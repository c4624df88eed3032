#include "apps/inspect_report.h"
#include "apps/text_table.h"

namespace cedar::apps {
namespace {

using model::LayerPlan;

std::string id_or_dash(const std::optional<LayerId>& id) { return id ? std::to_string(*id) : "-"; }

std::string notes(const LayerPlan& layer) {
  std::string text;
  const auto note = [&text](bool applies, const char* what) {
    if (applies) text += (text.empty() ? "" : ", ") + std::string(what);
  };
  note(layer.has_engram, "Engram");
  note(layer.makes_candidates, "makes candidates");
  note(layer.uses_candidates, "uses candidates");
  note(layer.is_draft_target, "feeds the drafter");
  return text;
}

std::vector<std::string> layer_cells(const LayerPlan& layer) {
  return {std::string(to_string(layer.half)),
          std::string(to_string(layer.mode)),
          layer.ratio == 0 ? "-" : std::to_string(layer.ratio),
          id_or_dash(layer.kv_source),
          id_or_dash(layer.index_source),
          notes(layer)};
}

/// Neighbouring layers that do the same share a line.
void print_layers(const InspectReport& report, std::ostream& out) {
  TextTable table({"layers", "half", "mode", "ratio", "KV of", "top-k of", "notes"});
  const auto& layers = report.plan.layers;
  for (size_t first = 0; first < layers.size();) {
    std::vector<std::string> cells = layer_cells(layers[first]);
    size_t last = first;
    while (last + 1 < layers.size() && layer_cells(layers[last + 1]) == cells) ++last;
    cells.insert(cells.begin(), first == last
                                    ? std::to_string(first)
                                    : std::to_string(first) + ".." + std::to_string(last));
    table.add(std::move(cells));
    first = last + 1;
  }
  table.print(out);
}

/// "7.90 B" or "12.34 M".
std::string magnitude(int64_t count) {
  const double value = static_cast<double>(count);
  return count >= 1'000'000'000 ? fixed(value / 1e9, 2) + " B" : fixed(value / 1e6, 2) + " M";
}

std::vector<std::string> total_cells(std::string name, const model::TensorTotals& totals) {
  constexpr double kGiB = 1 << 30;
  return {std::move(name), with_commas(totals.tensors), with_commas(totals.bytes),
          fixed(static_cast<double>(totals.bytes) / kGiB, 2), with_commas(totals.parameters)};
}

model::TensorTotals sum(const model::TensorTotals& a, const model::TensorTotals& b) {
  return {a.tensors + b.tensors, a.bytes + b.bytes, a.parameters + b.parameters};
}

void print_groups(const InspectReport& report, std::ostream& out) {
  const model::Footprint& footprint = report.footprint;
  TextTable groups({"weights", "tensors", "bytes", "GiB", "parameters"});
  for (const model::GroupTotals& group : footprint.groups) {
    groups.add(total_cells(std::string(to_string(group.group)), group.totals));
  }
  groups.add(total_cells("all", footprint.all));
  groups.print(out);

  out << '\n';
  TextTable roles({"role", "tensors", "bytes", "GiB", "parameters"});
  roles.add(total_cells("encoder", footprint.encoder));
  roles.add(total_cells("decoder", footprint.decoder));
  if (footprint.drafter.tensors > 0) {
    roles.add(total_cells("decoder with drafter", sum(footprint.decoder, footprint.drafter)));
  }
  if (footprint.engram_tables.tensors > 0) {
    roles.add(total_cells("Engram tables (either)", footprint.engram_tables));
  }
  roles.print(out);
  out << "\n  parameters used per token: " << magnitude(footprint.active_prefill_parameters)
      << " in prefill, " << magnitude(footprint.active_decode_parameters) << " in decode\n";
}

void print_kv(const InspectReport& report, std::ostream& out) {
  const model::KvLayout& kv = report.footprint.kv;
  out << "KV block: " << kv.block_tokens << " tokens, " << with_commas(kv.block_bytes) << " bytes, "
      << fixed(kv.bytes_per_token(), 2) << " bytes per token\n";
  TextTable sources(
      {"source layer", "ratio", "rows", "row bytes", "main KV at", "key bytes", "index keys at"});
  for (const model::KvSourceLayout& source : kv.sources) {
    sources.add({std::to_string(source.layer), std::to_string(source.ratio),
                 std::to_string(source.rows_per_block), std::to_string(kv.main_row_bytes),
                 with_commas(source.main_offset), std::to_string(kv.index_row_bytes),
                 with_commas(source.index_offset)});
  }
  sources.print(out);
  const double full =
      kv.bytes_per_token() * static_cast<double>(report.config.max_position_embeddings);
  out << "  full context, " << with_commas(report.config.max_position_embeddings)
      << " tokens: " << with_commas(static_cast<int64_t>(full)) << " bytes\n"
      << "  V4-Flash: " << fixed(model::kV4FlashBytesPerToken, 2) << " bytes per token, this is "
      << fixed(kv.bytes_per_token() / model::kV4FlashBytesPerToken, 4)
      << " of it; V1-67B: " << with_commas(static_cast<int64_t>(model::kV1BytesPerToken))
      << ", this is 1/" << fixed(model::kV1BytesPerToken / kv.bytes_per_token(), 1) << " of it\n";
}

void print_state(const InspectReport& report, std::ostream& out) {
  const model::Footprint& footprint = report.footprint;
  const int64_t window = report.config.sliding_window;
  TextTable state({"fixed state of a sequence", "bytes", "made of"});
  state.add({"window rings", with_commas(footprint.window_bytes),
             std::to_string(report.plan.layers.size()) + " layers x " + std::to_string(window) +
                 " rows x " + std::to_string(footprint.kv.window_row_bytes) + " bytes"});
  if (footprint.drafter_window_bytes > 0) {
    state.add({"drafter rings", with_commas(footprint.drafter_window_bytes),
               std::to_string(report.config.num_nextn_predict_layers) + " stages"});
  }
  state.print(out);

  out << '\n';
  const model::HandoffBytes& handoff = footprint.handoff;
  TextTable parts({"hand-off of a prompt, besides its blocks", "bytes"});
  parts.add({"encoder windows", with_commas(handoff.encoder_windows)});
  parts.add({"open groups, at most", with_commas(handoff.open_groups)});
  parts.add({"boundary rows", with_commas(handoff.boundary_rows)});
  parts.add({"n-gram history", with_commas(handoff.ngram_history)});
  parts.add({"all", with_commas(handoff.total())});
  parts.print(out);
  out << "  replay: " << window << " rows bounded, "
      << with_commas(report.plan.exact_replay_rows(window)) << " rows exact\n";
}

void print_engram(const InspectReport& report, std::ostream& out) {
  if (report.engram.layers.empty()) return;
  const int64_t dim = report.config.engram_head_dim;
  TextTable tables(
      {"Engram layer", "rows", "row bytes", "rows per token", "smallest prime", "largest prime"});
  for (const model::EngramLayerLayout& layer : report.engram.layers) {
    tables.add({std::to_string(layer.layer), with_commas(layer.rows),
                std::to_string(dim + dim / 32), std::to_string(report.engram.columns),
                with_commas(layer.primes.front()), with_commas(layer.primes.back())});
  }
  tables.print(out);
  out << '\n';
}

void print_weights(const InspectReport& report, std::ostream& out) {
  if (!report.weights) {
    out << "weights: " << report.weights_problem << '\n';
    return;
  }
  out << "weights: " << with_commas(report.weights->tensors) << " tensors, "
      << with_commas(report.weights->bytes) << " bytes in " << report.weights->files
      << (report.weights->files == 1 ? " file" : " files") << "; headers verified for role "
      << to_string(report.weights->role)
      << ": none missing, none left over, types and shapes as expected\n";
}

}  // namespace

void print_text(const InspectReport& report, std::ostream& out) {
  const model::ModelConfig& config = report.config;
  out << report.directory << ": " << report.plan.layers.size() << " layers, "
      << report.plan.encoder_layers() << " encoder and " << report.plan.decoder_layers()
      << " decoder; hidden size " << config.hidden_size << ", vocabulary " << config.vocab_size
      << ", " << config.num_nextn_predict_layers << " drafter stages, "
      << (config.vision ? "with" : "without") << " vision\n\n";
  print_layers(report, out);
  out << '\n';
  print_groups(report, out);
  out << '\n';
  print_kv(report, out);
  out << '\n';
  print_state(report, out);
  out << '\n';
  print_engram(report, out);
  print_weights(report, out);
}

}  // namespace cedar::apps
