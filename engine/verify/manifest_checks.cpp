// What needs no tensor: tokenizer texts, the release's Engram geometry, image grids.

#include "engine/verify/checks.h"
#include "model/engram_layout.h"
#include "model/image_processor.h"
#include "model/strict_json.h"

namespace cedar::engine::verify {
namespace {

using nlohmann::json;

/// The array `key` of the manifest; null, and skipped, when it is absent.
const json* section(Session& session, const std::string& key) {
  const json& manifest = session.golden().manifest();
  if (manifest.contains(key)) return &manifest[key];
  session.report().skip("manifest." + key, "manifest.json does not have it");
  return nullptr;
}

std::string quoted(std::string text) {
  constexpr size_t kShown = 40;
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return json(text).dump(-1, ' ', true, json::error_handler_t::replace);
}

void check_tokenizer_case(Session& session, const json& entry) {
  const auto text = entry.at("text").get<std::string>();
  const auto ids = entry.at("ids").get<std::vector<TokenId>>();
  Report& report = session.report();
  report.check(kTokenizerIds, count_different(session.tokenizer().encode(text), ids), quoted(text));
  if (!entry.contains("decoded")) return;
  const auto decoded = entry["decoded"].get<std::string>();
  const std::string found = session.tokenizer().decode(ids);
  report.check(kTokenizerText, found == decoded ? 0 : 1, quoted(text), "decoded " + quoted(found));
}

/// The release's own tables (spec/model.md 1), whatever this checkpoint is.
model::ModelConfig release_engram_config() {
  model::ModelConfig config;
  config.engram_layer_ids = {1, 14};
  config.engram_num_embeddings = {384006168, 384016682};
  config.engram_max_ngram_size = 4;
  config.engram_vocab_size = 16000000;
  config.engram_n_heads = 8;
  config.engram_head_dim = 256;
  config.engram_pad_token_id = 2;
  config.engram_compressed_vocab_size = 99092;
  return config;
}

void check_release_engram(Session& session, const json& entry) {
  Report& report = session.report();
  const auto layout = model::make_engram_layout(release_engram_config());
  if (!layout) return report.fail(kReleaseEngram, "release_engram", layout.error());
  const auto primes = entry.at("primes").get<std::vector<std::vector<std::vector<int64_t>>>>();
  const auto sums = entry.at("sums").get<std::vector<int64_t>>();
  const auto multipliers = entry.at("multipliers").get<std::vector<std::vector<int64_t>>>();
  std::vector<int64_t> flat_primes, flat_multipliers, found_primes, found_sums, found_multipliers;
  for (const auto& layer : primes) {
    for (const auto& order : layer)
      flat_primes.insert(flat_primes.end(), order.begin(), order.end());
  }
  for (const auto& layer : multipliers) {
    flat_multipliers.insert(flat_multipliers.end(), layer.begin(), layer.end());
  }
  for (const model::EngramLayerLayout& layer : layout->layers) {
    found_primes.insert(found_primes.end(), layer.primes.begin(), layer.primes.end());
    found_sums.push_back(layer.rows);
    found_multipliers.insert(found_multipliers.end(), layer.multipliers.begin(),
                             layer.multipliers.end());
  }
  report.check(kReleaseEngram, count_different(found_primes, flat_primes), "primes");
  report.check(kReleaseEngram, count_different(found_sums, sums), "sums");
  report.check(kReleaseEngram, count_different(found_multipliers, flat_multipliers), "multipliers");
}

/// The release's image sizes (spec/model.md 1).
model::VisionConfig release_vision() {
  model::VisionConfig config;
  config.patch_size = 14;
  config.downsample_ratio = 3;
  config.max_image_tokens = 1024;
  config.min_pixels = 295936;
  return config;
}

void check_grid(Session& session, const model::VisionConfig& config, const json& entry) {
  const auto width = entry.at("width").get<int64_t>();
  const auto height = entry.at("height").get<int64_t>();
  const auto expected = entry.at("plan").get<std::vector<int64_t>>();
  const std::string what = std::to_string(width) + " x " + std::to_string(height);
  const auto plan = model::plan_image(width, height, config);
  if (!plan) return session.report().fail(kImageGrid, what, plan.error());
  const std::vector<int64_t> found = {plan->grid.rows, plan->grid.columns, plan->size.height,
                                      plan->size.width};
  session.report().check(kImageGrid, count_different(found, expected), what);
}

/// Calls check(entry) for every element; a damaged entry fails instead of ending the program.
template <class Check>
void each(Session& session, const Kind& kind, const std::string& what, const json& entries,
          const Check& check) {
  for (const json& entry : entries) {
    try {
      check(entry);
    } catch (const json::exception& error) {
      session.report().fail(kind, what, "manifest.json: " + model::json_problem(error));
    }
  }
}

}  // namespace

void check_manifest(Session& session) {
  if (!session.golden().has_manifest()) {
    return session.report().skip("manifest", "manifest.json is absent");
  }
  session.progress("manifest", "tokenizer, geometry");
  if (const json* texts = section(session, "tokenizer")) {
    each(session, kTokenizerIds, "tokenizer", *texts,
         [&](const json& entry) { check_tokenizer_case(session, entry); });
  }
  if (const json* release = section(session, "release_engram")) {
    each(session, kReleaseEngram, "release_engram", json::array({*release}),
         [&](const json& entry) { check_release_engram(session, entry); });
  }
  const json* cases = section(session, "image_grid_cases");
  if (cases != nullptr && !session.config().vision) {
    session.report().skip("manifest.image_grid_cases", "the model has no vision_config");
  } else if (cases != nullptr) {
    each(session, kImageGrid, "image_grid_cases", *cases,
         [&](const json& entry) { check_grid(session, *session.config().vision, entry); });
  }
  if (const json* sizes = section(session, "image_grid_cases_release_sizes")) {
    each(session, kImageGrid, "image_grid_cases_release_sizes", *sizes,
         [&](const json& entry) { check_grid(session, release_vision(), entry); });
  }
}

}  // namespace cedar::engine::verify
