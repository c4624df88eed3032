// Units that use this checkpoint's weights: a router, the Engram tables and the first Engram layer.

#include <algorithm>
#include <charconv>

#include "engine/verify/engram_sources.h"
#include "engine/verify/unit_checks.h"
#include "kernels/moe.h"

namespace cedar::engine::verify {
namespace {

void check_gate(Session& session, GoldenFile& file, const std::string& prefix, LayerId layer) {
  const model::ModelConfig& config = session.config();
  const int64_t d = config.hidden_size, top = config.num_experts_per_tok;
  const TensorView* x = file.tensor(prefix + ".x", DType::bf16, {kAny, d});
  if (x == nullptr) return;
  const int64_t rows = x->shape[0];
  const TensorView* mask = file.tensor(prefix + ".image_mask", DType::boolean, {rows});
  const TensorView* experts = file.tensor(prefix + ".experts", DType::i32, {rows, top});
  const TensorView* weights = file.tensor(prefix + ".weights", DType::f32, {rows, top});
  if (mask == nullptr || experts == nullptr || weights == nullptr) return;
  const LayerWeights& w = *session.model().layers[static_cast<size_t>(layer)];
  kernels::KernelContext& ctx = session.ctx();
  ArenaScope scope(*ctx.arena);
  kernels::MoeGateParams p;
  p.x = input<Bf16>(ctx, *x);
  p.gate = &w.gate;
  p.bias = w.gate_bias.as<float>();
  p.bias_image = w.gate_bias_image.as<float>();
  p.image_mask = input<uint8_t>(ctx, *mask);
  p.experts = ctx.arena->allocate<int32_t>(rows * top);
  p.weights = ctx.arena->allocate<float>(rows * top);
  p.rows = rows;
  p.d = d;
  p.expert_count = static_cast<int64_t>(w.experts.size());
  p.top = top;
  p.route_scale = config.routed_scaling_factor;
  Report& report = session.report();
  if (Status status = kernels::moe_gate(ctx, p); !status) {
    return report.fail(kGateExperts, prefix, status.error());
  }
  const std::vector<int32_t> found = output(ctx, p.experts, rows * top);
  report.check(kGateExperts, count_different(found, integers(*experts)), prefix + ".experts");
  report.check(kGateWeights, relative_l2(output(ctx, p.weights, rows * top), floats(*weights)),
               prefix + ".weights");
}

/// "gate2.x": the gate of layer 2.
void check_gates(Session& session, GoldenFile& file) {
  constexpr std::string_view kGate = "gate";
  for (const std::string& name : file.names()) {
    if (!name.starts_with(kGate) || !name.ends_with(".x")) continue;
    LayerId layer = 0;
    const char* begin = name.data() + kGate.size();
    const char* end = name.data() + name.size() - 2;
    const auto [rest, error] = std::from_chars(begin, end, layer);
    if (error != std::errc() || rest != end || !session.has_layer(layer)) continue;
    check_gate(session, file, name.substr(0, name.size() - 2), layer);
  }
}

void check_tables(Session& session, GoldenFile& file) {
  const model::EngramLayout& layout = session.model().engram;
  const auto layers = static_cast<int64_t>(layout.layers.size());
  Report& report = session.report();
  const TensorView* map = file.tensor("engram.compressed_token_map", DType::i64, {kAny});
  if (map != nullptr) {
    report.check(kEngramTables, count_different(session.model().compression.map(), integers(*map)),
                 "engram.compressed_token_map");
  }
  std::vector<int64_t> primes, offsets, multipliers;
  for (const model::EngramLayerLayout& layer : layout.layers) {
    primes.insert(primes.end(), layer.primes.begin(), layer.primes.end());
    offsets.insert(offsets.end(), layer.offsets.begin(), layer.offsets.end());
    multipliers.insert(multipliers.end(), layer.multipliers.begin(), layer.multipliers.end());
  }
  const auto compare = [&](const char* name, const std::vector<int64_t>& found,
                           const std::vector<int64_t>& shape) {
    const TensorView* expected = file.tensor(name, DType::i64, shape);
    if (expected != nullptr) {
      report.check(kEngramTables, count_different(found, integers(*expected)), name);
    }
  };
  const int64_t orders = session.config().engram_max_ngram_size - 1;
  compare("engram.primes", primes, {layers, orders, session.config().engram_n_heads});
  compare("engram.offsets", offsets, {layers, layout.columns});
  compare("engram.multipliers", multipliers, {layers, layout.max_ngram});
}

void check_module(Session& session, GoldenFile& file) {
  const model::ModelConfig& config = session.config();
  if (config.engram_layer_ids.empty()) return;
  const TensorView* x =
      file.tensor("engram_unit.x", DType::bf16, {kAny, config.hc_mult, config.hidden_size});
  if (x == nullptr) return;
  const TensorView* ids = file.tensor("engram_unit.hash_ids", DType::i64,
                                      {x->shape[0], session.model().engram.columns});
  const TensorView* out = file.tensor("engram_unit.out", DType::bf16, x->shape);
  if (ids == nullptr || out == nullptr) return;
  const std::vector<int64_t> rows = integers(*ids);
  const int64_t table_rows = session.model().engram.layers.front().rows;
  if (std::any_of(rows.begin(), rows.end(), [&](int64_t r) { return r < 0 || r >= table_rows; })) {
    return session.report().fail(kEngramUnit, "engram_unit.hash_ids", "a row outside the table");
  }
  GivenRows given(session.runner().engram(), rows);
  // Which tokens stand there does not matter: their row ids are replaced. BOS is no image token.
  const std::vector<TokenId> tokens(static_cast<size_t>(x->shape[0]), config.bos_token_id);
  Report& report = session.report();
  auto frame = Frame::open(session, tokens, &given);
  if (!frame) return report.fail(kEngramUnit, "engram_unit", frame.error());
  Bf16* state = input<Bf16>((*frame)->ctx(), *x);
  const LayerId layer = config.engram_layer_ids.front();
  if (Status status = (*frame)->forward.engram(layer, (*frame)->batch, state); !status) {
    return report.fail(kEngramUnit, "engram_unit", status.error());
  }
  const std::vector<float> found = widened_output((*frame)->ctx(), state, x->elements());
  report.check(kEngramUnit, relative_l2(found, floats(*out)), "engram_unit.out");
  report.check(kEngramUnitSteps, worst_bf16_steps(found, floats(*out), config.hidden_size),
               "engram_unit.out");
}

}  // namespace

void check_model_units(Session& session, GoldenFile& file) {
  check_gates(session, file);
  check_tables(session, file);
  check_module(session, file);
}

void check_units(Session& session) {
  GoldenFile* file = session.golden().file("units");
  if (file == nullptr) return session.report().skip("units", "units.safetensors is absent");
  session.progress("units", "single operations");
  check_linear_units(session, *file);
  check_rope_units(session, *file);
  check_attention_units(session, *file);
  check_model_units(session, *file);
}

}  // namespace cedar::engine::verify
