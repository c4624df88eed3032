// Rotary tables and their application.

#include <cmath>

#include "engine/verify/unit_checks.h"
#include "kernels/rope.h"

namespace cedar::engine::verify {
namespace {

struct RopeSetup {
  double theta = 0;
  kernels::YarnScaling yarn;  // factor 1: none
};

/// Tables named rope_release_* are the release's own (spec/model.md 1), all others this configuration's.
RopeSetup setup(const model::ModelConfig& config, const std::string& name, bool compressed) {
  if (name == "release") {
    return compressed ? RopeSetup{160000, {16, 32, 1, 65536}} : RopeSetup{10000, {}};
  }
  if (!compressed) return {config.rope_theta, {}};
  const model::RopeScaling& s = config.rope_scaling;
  return {config.compress_rope_theta,
          {s.factor, s.beta_fast, s.beta_slow, s.original_max_position_embeddings}};
}

/// Rows of one half of a table, near or far.
struct Rows {
  std::vector<float> found, expected;
};

void check_table(Session& session, GoldenFile& file, const std::string& prefix,
                 const RopeSetup& rope) {
  const TensorView* positions = file.tensor(prefix + ".positions", DType::i32, {kAny});
  const TensorView* frequency = file.tensor(prefix + ".freq", DType::f32, {kAny});
  if (positions == nullptr || frequency == nullptr) return;
  const int64_t pairs = frequency->shape[0];
  const std::vector<int64_t> shape = {positions->shape[0], pairs};
  const TensorView* cos = file.tensor(prefix + ".cos", DType::f32, shape);
  const TensorView* sin = file.tensor(prefix + ".sin", DType::f32, shape);
  if (cos == nullptr || sin == nullptr) return;

  const std::vector<float> inverse =
      kernels::rope_inverse_frequencies(2 * pairs, rope.theta, rope.yarn);
  std::vector<float> c(static_cast<size_t>(pairs)), s(static_cast<size_t>(pairs));
  Rows near, far;
  const std::vector<int64_t> at = integers(*positions);
  for (size_t row = 0; row < at.size(); ++row) {
    kernels::rope_table(at[row], inverse.data(), pairs, c.data(), s.data());
    Rows& rows = at[row] <= kNearPositions ? near : far;
    const auto begin = static_cast<std::ptrdiff_t>(row) * pairs;
    rows.found.insert(rows.found.end(), c.begin(), c.end());
    rows.found.insert(rows.found.end(), s.begin(), s.end());
    for (const TensorView* table : {cos, sin}) {
      const auto values = table->as<float>();
      rows.expected.insert(rows.expected.end(), values.begin() + begin,
                           values.begin() + begin + pairs);
    }
  }
  Report& report = session.report();
  kernels::rope_table(1, inverse.data(), pairs, c.data(), s.data());
  report.check(kRopeTable, relative_l2(s, floats(*frequency)), prefix + ".freq");
  if (!near.found.empty()) {
    report.check(kRopeTable, relative_l2(near.found, near.expected), prefix);
  }
  if (!far.found.empty()) {
    report.check(kRopeTableFar, relative_l2(far.found, far.expected), prefix);
  }
}

/// The recorded table has no positions: at position 1 the angle itself is the frequency.
void check_application(Session& session, GoldenFile& file) {
  const TensorView* x = file.tensor("rope_apply.x", DType::bf16, {1, kAny, kAny, kAny});
  const TensorView* y = file.tensor("rope_apply.y", DType::bf16, {1, kAny, kAny, kAny});
  const TensorView* back = file.tensor("rope_apply.back", DType::bf16, {1, kAny, kAny, kAny});
  if (x == nullptr || y == nullptr || back == nullptr) return;
  const int64_t rows = x->shape[1], heads = x->shape[2], dim = x->shape[3];
  const TensorView* cos = file.tensor("rope_apply.cos", DType::f32, {rows, dim / 2});
  const TensorView* sin = file.tensor("rope_apply.sin", DType::f32, {rows, dim / 2});
  if (cos == nullptr || sin == nullptr) return;
  kernels::KernelContext& ctx = session.ctx();
  ArenaScope scope(*ctx.arena);
  Bf16* forward = input<Bf16>(ctx, *x);
  Bf16* inverse = input<Bf16>(ctx, *y);
  const int64_t* one = upload(ctx, std::vector<int64_t>{1});
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<float> angles;
    for (int64_t i = 0; i < dim / 2; ++i) {
      const auto at = static_cast<size_t>(row * (dim / 2) + i);
      angles.push_back(static_cast<float>(std::atan2(static_cast<double>(sin->as<float>()[at]),
                                                     static_cast<double>(cos->as<float>()[at]))));
    }
    kernels::RopeParams p;
    p.row_stride = heads * dim;
    p.head_stride = dim;
    p.positions = one;
    p.inv_freq = upload(ctx, angles);
    p.rows = 1;
    p.heads = heads;
    p.head_dim = dim;
    p.rotary_dim = dim;
    for (const bool reverse : {false, true}) {
      p.x = (reverse ? inverse : forward) + row * heads * dim;
      p.inverse = reverse;
      if (Status status = kernels::rope(ctx, p); !status) {
        return session.report().fail(kRopeApply, "rope_apply", status.error());
      }
    }
  }
  session.report().check(kRopeApply,
                         relative_l2(widened_output(ctx, forward, x->elements()), floats(*y)),
                         "rope_apply.y");
  session.report().check(kRopeApply,
                         relative_l2(widened_output(ctx, inverse, x->elements()), floats(*back)),
                         "rope_apply.back");
}

}  // namespace

void check_rope_units(Session& session, GoldenFile& file) {
  constexpr std::string_view kRope = "rope_";
  for (const std::string& name : file.names()) {
    for (const bool compressed : {false, true}) {
      const std::string suffix = compressed ? "_compressed.positions" : "_window.positions";
      if (!name.starts_with(kRope) || !name.ends_with(suffix)) continue;
      const std::string setup_name =
          name.substr(kRope.size(), name.size() - kRope.size() - suffix.size());
      const std::string prefix = name.substr(0, name.rfind('.'));
      check_table(session, file, prefix, setup(session.config(), setup_name, compressed));
    }
  }
  check_application(session, file);
}

}  // namespace cedar::engine::verify
