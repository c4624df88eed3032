// Hyper-connections, normalisation and the packing of cache rows, at the release's sizes.

#include <cmath>
#include <memory>
#include <string>

#include "bench/kernels/bench_data.h"
#include "bench/kernels/cases.h"
#include "kernels/hyper_connection.h"
#include "kernels/index_score.h"
#include "kernels/kv_write.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "tests/reference/attention_reference.h"

namespace cedar::bench {
namespace {

constexpr int64_t kCopies = 4;
constexpr int64_t kD = 5120;
constexpr int64_t kOutputs = kCopies * (2 + kCopies);
constexpr int64_t kHeadDim = 512;

std::vector<float> random_f32(int64_t count, uint64_t seed, float deviation) {
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = random.normal() * deviation;
  return values;
}

test::Row widened(const Bf16* x, int64_t count) {
  test::Row y;
  for (int64_t i = 0; i < count; ++i) y.push_back(static_cast<double>(static_cast<float>(x[i])));
  return y;
}

struct HcData {
  explicit HcData(int64_t rows)
      : x(random_bf16(rows * kCopies * kD, 1)),
        norm(random_bf16(kD, 2)),
        u(static_cast<size_t>(rows * kD)),
        out(x.size()),
        pre_in(random_f32(rows * kCopies, 3, 1)),
        fn(random_f32(kOutputs * kCopies * kD, 4, 0.01f)),
        base(random_f32(kOutputs, 5, 1)),
        scale{0.5f, 0.25f, 1.5f},
        pre(static_cast<size_t>(rows * kCopies)),
        post(pre.size()),
        mix(static_cast<size_t>(rows * kCopies * kCopies)) {}

  kernels::HcPreParams start(int64_t rows) {
    kernels::HcPreParams p;
    p.x = x.data();
    p.pre_in = pre_in.data();
    p.weights = {fn.data(), base.data(), scale.data()};
    p.norm_weight = norm.data();
    p.norm_eps = 1e-20f;
    p.hc_eps = 1e-6f;
    p.u = u.data();
    p.pre = pre.data();
    p.post = post.data();
    p.mix = mix.data();
    p.rows = rows;
    p.copies = kCopies;
    p.d = kD;
    return p;
  }

  /// The first row's pre-mix.
  std::string verify() const {
    const test::Row z = widened(x.data(), kCopies * kD);
    const double rho = 1 / std::sqrt(test::dot(z, z) / static_cast<double>(z.size()));
    for (int64_t j = 0; j < kCopies; ++j) {
      const auto begin = fn.begin() + j * kCopies * kD;
      const double m = test::dot({begin, begin + kCopies * kD}, z) * rho;
      const double want =
          1 / (1 + std::exp(-(m * 0.5 + static_cast<double>(base[static_cast<size_t>(j)])))) + 1e-6;
      if (std::abs(static_cast<double>(pre[static_cast<size_t>(j)]) - want) > 1e-5) {
        return "pre[" + std::to_string(j) + "] is " + std::to_string(pre[static_cast<size_t>(j)]);
      }
    }
    return {};
  }

  std::vector<Bf16> x, norm, u, out;
  std::vector<float> pre_in, fn, base, scale, pre, post, mix;
};

Case hc_pre_case(int64_t rows) {
  return {"hc_pre", "[" + std::to_string(rows) + ", 4, 5120]",
          [rows](kernels::KernelContext& ctx) -> Result<Prepared> {
            auto data = std::make_shared<HcData>(rows);
            Prepared prepared;
            prepared.run = [=, &ctx] { return kernels::hc_pre(ctx, data->start(rows)); };
            prepared.verify = [data] { return data->verify(); };
            prepared.bytes =
                static_cast<double>(data->fn.size() * 4 + data->x.size() * 2 + data->u.size() * 2);
            prepared.flops = static_cast<double>(rows * kOutputs * kCopies * kD) * 2;
            prepared.bound = rows == 1 ? Bound::memory : Bound::f32;
            return prepared;
          }};
}

Case hc_post_case(int64_t rows) {
  return {"hc_post", "[" + std::to_string(rows) + ", 4, 5120]",
          [rows](kernels::KernelContext& ctx) -> Result<Prepared> {
            auto data = std::make_shared<HcData>(rows);
            CEDAR_CHECK_OK(kernels::hc_pre(ctx, data->start(rows)));
            Prepared prepared;
            prepared.run = [=, &ctx] {
              return kernels::hc_post(ctx, {.x = data->x.data(),
                                            .y = data->u.data(),
                                            .post = data->post.data(),
                                            .mix = data->mix.data(),
                                            .x_out = data->out.data(),
                                            .rows = rows,
                                            .copies = kCopies,
                                            .d = kD});
            };
            prepared.verify = [data]() -> std::string {
              double want = static_cast<double>(data->post[0]) *
                            static_cast<double>(static_cast<float>(data->u[0]));
              for (int64_t j = 0; j < kCopies; ++j) {
                want +=
                    static_cast<double>(data->mix[static_cast<size_t>(j * kCopies)]) *
                    static_cast<double>(static_cast<float>(data->x[static_cast<size_t>(j * kD)]));
              }
              const double got = static_cast<double>(static_cast<float>(data->out[0]));
              if (std::abs(got - want) <= 0.005 * std::abs(want) + 1e-6) return {};
              return "first element is " + std::to_string(got) + ", not " + std::to_string(want);
            };
            prepared.bytes = static_cast<double>(data->x.size() * 4 + data->u.size() * 2);
            return prepared;
          }};
}

Case rms_norm_case(int64_t rows) {
  return {"rms_norm", "[" + std::to_string(rows) + ", 5120]",
          [rows](kernels::KernelContext& ctx) -> Result<Prepared> {
            auto data = std::make_shared<HcData>(rows);
            Prepared prepared;
            prepared.run = [=, &ctx] {
              return kernels::rms_norm(ctx, {.x = data->x.data(),
                                             .x_stride = kD,
                                             .weight = data->norm.data(),
                                             .y = data->u.data(),
                                             .y_stride = kD,
                                             .rows = rows,
                                             .columns = kD,
                                             .eps = 1e-20f});
            };
            prepared.verify = [data]() -> std::string {
              const test::Row want = test::rms_norm_reference(
                  widened(data->x.data(), kD), widened(data->norm.data(), kD), 1e-20);
              for (size_t i = 0; i < want.size(); ++i) {
                const double got = static_cast<double>(static_cast<float>(data->u[i]));
                if (std::abs(got - want[i]) > 0.005 * std::abs(want[i]))
                  return "element " + std::to_string(i);
              }
              return {};
            };
            prepared.bytes = static_cast<double>(rows * kD * 4);
            return prepared;
          }};
}

/// Rows of one layer on their way into a cache, or indexer queries on their way to the scores.
struct PackData {
  explicit PackData(int64_t rows)
      : x(random_bf16(rows * 32 * 128, 6)),
        norm(random_bf16(kHeadDim, 7)),
        positions(static_cast<size_t>(rows), 5000),
        inv_freq(kernels::rope_inverse_frequencies(64, 160000, {16, 32, 1, 65536})),
        packed(x.size()) {}
  std::vector<Bf16> x, norm;
  std::vector<int64_t> positions;
  std::vector<float> inv_freq;
  std::vector<uint8_t> packed;
};

Case kv_write_case(kernels::RowFormat format, const std::string& name, int64_t rows) {
  return {"kv_write", name + " [" + std::to_string(rows) + ", 512]",
          [=](kernels::KernelContext& ctx) -> Result<Prepared> {
            auto data = std::make_shared<PackData>(rows);
            kernels::KvWriteParams p;
            p.format = format;
            p.x = data->x.data();
            p.x_stride = p.columns = kHeadDim;
            p.norm_weight = data->norm.data();
            p.eps = 1e-20f;
            p.positions = data->positions.data();
            p.inv_freq = data->inv_freq.data();
            p.rows = rows;
            p.rotary_dim = 64;
            p.dense = data->packed.data();
            Prepared prepared;
            prepared.run = [=, &ctx] { return kernels::kv_write(ctx, p); };
            prepared.verify = [=]() -> std::string {
              test::Row want = test::rms_norm_reference(
                  widened(data->x.data(), kHeadDim), widened(data->norm.data(), kHeadDim), 1e-20);
              want = test::rotate_reference(want, data->positions[0], data->inv_freq, false);
              std::vector<Bf16> got(static_cast<size_t>(kHeadDim));
              kernels::dequantize_row(format, data->packed.data(), kHeadDim, got.data());
              double difference = 0, norm = 0;
              for (size_t i = 0; i < want.size(); ++i) {
                const double d = static_cast<double>(static_cast<float>(got[i])) - want[i];
                difference += d * d;
                norm += want[i] * want[i];
              }
              // Four bits lose about a tenth, eight bits a fortieth.
              const double error = std::sqrt(difference / norm);
              return error < 0.15 ? std::string() : "relative error " + std::to_string(error);
            };
            prepared.bytes = static_cast<double>(
                rows * (kHeadDim * 2 + kernels::packed_row_bytes(format, kHeadDim)));
            return prepared;
          }};
}

Case index_query_case(int64_t rows) {
  return {"index_query", "32 heads x 128, " + std::to_string(rows) + " rows",
          [=](kernels::KernelContext& ctx) -> Result<Prepared> {
            auto data = std::make_shared<PackData>(rows);
            kernels::IndexQueryParams p;
            p.q = data->x.data();
            p.positions = data->positions.data();
            p.inv_freq = data->inv_freq.data();
            p.packed = data->packed.data();
            p.rows = rows;
            p.heads = 32;
            p.columns = 128;
            p.rotary_dim = 64;
            Prepared prepared;
            prepared.run = [=, &ctx] { return kernels::index_query(ctx, p); };
            prepared.verify = [=]() -> std::string {
              // Columns before the rotary part are x itself, rounded to four bits.
              std::vector<Bf16> got(128), want(128);
              std::vector<uint8_t> packed(68);
              kernels::quantize_row(kernels::RowFormat::q4x, data->x.data(), 128, packed.data());
              kernels::dequantize_row(kernels::RowFormat::q4x, packed.data(), 128, want.data());
              kernels::dequantize_row(kernels::RowFormat::q4x, data->packed.data(), 128,
                                      got.data());
              for (size_t i = 0; i < 64; ++i) {
                if (!(got[i] == want[i])) return "column " + std::to_string(i);
              }
              return {};
            };
            prepared.bytes = static_cast<double>(rows * 32 * (256 + 68));
            return prepared;
          }};
}

}  // namespace

std::vector<Case> row_cases() {
  return {
      hc_pre_case(1),
      hc_pre_case(64),
      hc_post_case(64),
      rms_norm_case(64),
      kv_write_case(kernels::RowFormat::q8, "q8", 64),
      kv_write_case(kernels::RowFormat::q4n, "q4n", 64),
      index_query_case(64),
  };
}

}  // namespace cedar::bench
