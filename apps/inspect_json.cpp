#include <nlohmann/json.hpp>

#include "apps/inspect_report.h"

namespace cedar::apps {
namespace {

using nlohmann::ordered_json;

ordered_json id_or_null(const std::optional<LayerId>& id) {
  return id ? ordered_json(*id) : ordered_json(nullptr);
}

ordered_json layers_json(const model::ModelPlan& plan) {
  ordered_json list = ordered_json::array();
  for (const model::LayerPlan& layer : plan.layers) {
    list.push_back({{"layer", layer.id},
                    {"half", to_string(layer.half)},
                    {"mode", to_string(layer.mode)},
                    {"ratio", layer.ratio},
                    {"kv_source", id_or_null(layer.kv_source)},
                    {"index_source", id_or_null(layer.index_source)},
                    {"engram", layer.has_engram},
                    {"makes_candidates", layer.makes_candidates},
                    {"uses_candidates", layer.uses_candidates},
                    {"draft_target", layer.is_draft_target}});
  }
  return list;
}

ordered_json totals_json(const model::TensorTotals& totals) {
  return {{"tensors", totals.tensors}, {"bytes", totals.bytes}, {"parameters", totals.parameters}};
}

ordered_json kv_json(const model::KvLayout& kv) {
  ordered_json sources = ordered_json::array();
  for (const model::KvSourceLayout& source : kv.sources) {
    sources.push_back({{"layer", source.layer},
                       {"ratio", source.ratio},
                       {"rows_per_block", source.rows_per_block},
                       {"main_offset", source.main_offset},
                       {"index_offset", source.index_offset}});
  }
  return {{"block_tokens", kv.block_tokens},
          {"block_bytes", kv.block_bytes},
          {"bytes_per_token", kv.bytes_per_token()},
          {"main_row_bytes", kv.main_row_bytes},
          {"index_row_bytes", kv.index_row_bytes},
          {"window_row_bytes", kv.window_row_bytes},
          {"sources", sources},
          {"share_of_v4_flash", kv.bytes_per_token() / model::kV4FlashBytesPerToken},
          {"times_below_v1", model::kV1BytesPerToken / kv.bytes_per_token()}};
}

ordered_json handoff_json(const model::HandoffBytes& handoff) {
  return {{"encoder_windows", handoff.encoder_windows},
          {"open_groups", handoff.open_groups},
          {"boundary_rows", handoff.boundary_rows},
          {"ngram_history", handoff.ngram_history},
          {"total", handoff.total()}};
}

ordered_json engram_json(const model::EngramLayout& engram) {
  ordered_json list = ordered_json::array();
  for (const model::EngramLayerLayout& layer : engram.layers) {
    list.push_back({{"layer", layer.layer},
                    {"rows", layer.rows},
                    {"primes", layer.primes},
                    {"multipliers", layer.multipliers}});
  }
  return list;
}

ordered_json weights_json(const InspectReport& report) {
  if (!report.weights) return {{"verified", false}, {"problem", report.weights_problem}};
  return {{"verified", true},
          {"role", to_string(report.weights->role)},
          {"files", report.weights->files},
          {"tensors", report.weights->tensors},
          {"bytes", report.weights->bytes}};
}

}  // namespace

void print_json(const InspectReport& report, std::ostream& out) {
  const model::Footprint& footprint = report.footprint;
  ordered_json groups;
  for (const model::GroupTotals& group : footprint.groups) {
    groups[std::string(to_string(group.group))] = totals_json(group.totals);
  }
  const ordered_json document = {
      {"directory", report.directory},
      {"encoder_layers", report.plan.encoder_layers()},
      {"decoder_layers", report.plan.decoder_layers()},
      {"layers", layers_json(report.plan)},
      {"groups", groups},
      {"all", totals_json(footprint.all)},
      {"roles",
       {{"encoder", totals_json(footprint.encoder)},
        {"decoder", totals_json(footprint.decoder)},
        {"drafter", totals_json(footprint.drafter)},
        {"engram_tables", totals_json(footprint.engram_tables)}}},
      {"active_prefill_parameters", footprint.active_prefill_parameters},
      {"active_decode_parameters", footprint.active_decode_parameters},
      {"kv", kv_json(footprint.kv)},
      {"window_bytes", footprint.window_bytes},
      {"drafter_window_bytes", footprint.drafter_window_bytes},
      {"handoff_bytes", handoff_json(footprint.handoff)},
      {"exact_replay_rows", report.plan.exact_replay_rows(report.config.sliding_window)},
      {"engram", engram_json(report.engram)},
      {"weights", weights_json(report)},
  };
  out << document.dump(2, ' ', false, ordered_json::error_handler_t::replace) << '\n';
}

}  // namespace cedar::apps
