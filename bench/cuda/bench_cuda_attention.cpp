// bench_cuda_attention [--json FILE] [TEXT]: times attention, selection and row-wise operations on the first CUDA device at release
// shapes, against the copy rate measured in the same run. TEXT: only cases whose name contains it. Results are verified
// by the kernel tests, not here. Data is random, and larger than the L2 wherever an operation would read more than it
// in a model; a sample is a replay of a graph of launches between two events (bench/kernels/cuda_measure.h).

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include <nlohmann/json.hpp>

#include "bench/kernels/bench_data.h"
#include "bench/kernels/cuda_measure.h"
#include "core/device_memory.h"
#include "kernels/hyper_connection.h"
#include "kernels/index_score.h"
#include "kernels/kv_write.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/sparse_attention.h"
#include "kernels/topk.h"

namespace cedar::bench {
namespace {

constexpr Device kDevice{DeviceKind::cuda, 0};

void must(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "bench_cuda_attention: %s\n", status.error().message().c_str());
  std::exit(1);
}
template <class T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  std::fprintf(stderr, "bench_cuda_attention: %s\n", result.error().message().c_str());
  std::exit(1);
}

/// Device memory that lives as long as the program's current case.
class Memory {
 public:
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* p = reserve<T>(static_cast<int64_t>(values.size()));
    must(
        copy_to_device(kDevice, p, values.data(), static_cast<int64_t>(values.size() * sizeof(T))));
    return p;
  }
  template <class T>
  T* reserve(int64_t count) {
    buffers_.push_back(must(Buffer::allocate(kDevice, count * static_cast<int64_t>(sizeof(T)))));
    return buffers_.back().as<T>();
  }
  /// `bytes` random bytes repeating every 16 MiB.
  uint8_t* random_bytes(int64_t bytes, uint64_t seed, uint8_t mask = 0xff) {
    Random random(seed);
    std::vector<uint8_t> block(static_cast<size_t>(std::min<int64_t>(bytes, 16 << 20)));
    for (uint8_t& b : block) b = static_cast<uint8_t>(random.next() >> 40) & mask;
    uint8_t* p = reserve<uint8_t>(bytes);
    for (int64_t at = 0; at < bytes; at += std::ssize(block)) {
      must(copy_to_device(kDevice, p + at, block.data(), std::min(std::ssize(block), bytes - at)));
    }
    return p;
  }

 private:
  std::vector<Buffer> buffers_;
};

/// Packed rows with scales near one; pages of 64 rows in order, the same for every sequence where `shared`.
struct Pages {
  kernels::PagedRows rows;
  Pages(Memory& memory, kernels::RowFormat format, int64_t columns, int64_t sequences,
        int64_t rows_each, uint64_t seed) {
    constexpr int64_t kPerPage = 64;
    const int64_t bytes = kernels::packed_row_bytes(format, columns);
    const int64_t code_bytes = format == kernels::RowFormat::q8 ? columns : columns / 2;
    const int64_t pages = (rows_each + kPerPage - 1) / kPerPage;
    // One sequence's worth of content, repeated: its place in memory is what matters.
    const int64_t distinct = std::min<int64_t>(pages, 1024);
    std::vector<uint8_t> content(static_cast<size_t>(distinct * kPerPage * bytes));
    Random random(seed);
    for (size_t i = 0; i < content.size(); ++i) {
      const auto byte = static_cast<uint8_t>(random.next() >> 40);
      const bool scale = static_cast<int64_t>(i) % bytes >= code_bytes;
      content[i] = !scale ? (format == kernels::RowFormat::q8 ? byte & 0xbf : byte)
                   : format == kernels::RowFormat::q4n ? static_cast<uint8_t>(0x38 + byte % 8)
                                                       : static_cast<uint8_t>(124 + byte % 4);
    }
    const int64_t total = sequences * pages * kPerPage * bytes;
    rows.base = memory.reserve<uint8_t>(total);
    for (int64_t at = 0; at < total; at += std::ssize(content)) {
      must(copy_to_device(kDevice, rows.base + at, content.data(),
                          std::min(std::ssize(content), total - at)));
    }
    std::vector<int32_t> table;
    for (int64_t i = 0; i < sequences * pages; ++i) table.push_back(static_cast<int32_t>(i));
    rows.page_table = memory.upload(table);
    rows.max_pages = pages;
    rows.page_bytes = kPerPage * bytes;
    rows.row_bytes = bytes;
    rows.rows_per_page = kPerPage;
  }
};

class Bench {
 public:
  explicit Bench(std::string only)
      : only_(std::move(only)), pool_(1), arena_(kDevice), stream_(must(Stream::create(kDevice))) {
    ctx_.device = kDevice;
    ctx_.pool = &pool_;
    ctx_.arena = &arena_;
    ctx_.cuda_stream = stream_.handle();
    measure_copy();
  }

  /// `run` once for each launch; bytes and flops of one launch.
  void add(const std::string& name, double bytes, double flops,
           const std::function<std::function<Status(kernels::KernelContext&)>(Memory&)>& prepare) {
    if (name.find(only_) == std::string::npos) return;
    Memory memory;
    const auto run = prepare(memory);
    must(synchronize(kDevice));
    const double seconds = must(time_on_cuda(ctx_, 0.02, [&] { return run(ctx_); })).median_s;
    results_.push_back({{"case", name},
                        {"median_us", seconds * 1e6},
                        {"bytes", bytes},
                        {"flops", flops},
                        {"of_copy", bytes / seconds / copy_rate_}});
    std::printf("%-46s %10.2f us %8.1f GB/s %5.1f %% of copy %8.1f TFLOP/s\n", name.c_str(),
                seconds * 1e6, bytes / seconds / 1e9, 100 * bytes / seconds / copy_rate_,
                flops / seconds / 1e12);
    std::fflush(stdout);
  }

  /// The ceiling and what add() found.
  nlohmann::json report() const {
    return {{"machine", must(cuda_device_name(kDevice))},
            {"copy_bytes_per_s", copy_rate_},
            {"results", results_}};
  }

 private:
  void measure_copy() {
    copy_rate_ = must(measure_cuda_ceilings(ctx_)).copy_bytes_per_s;
    std::printf("device copy, read plus write: %.2f TB/s\n", copy_rate_ / 1e12);
  }

  nlohmann::json results_ = nlohmann::json::array();
  std::string only_;
  ThreadPool pool_;
  Arena arena_;
  Stream stream_;
  kernels::KernelContext ctx_;
  double copy_rate_ = 0;
};

// ---- sparse attention ---------------------------------------------------------------------------------------

void sparse(Bench& bench, int64_t rows, int64_t sequences, int64_t k, int64_t global_rows) {
  constexpr int64_t kHeads = 64, kDim = 512, kWindow = 128;
  const double entries = static_cast<double>(kWindow + k);
  const auto r = static_cast<double>(rows);
  bench.add("sparse_attention " + std::to_string(rows) + " queries, 128 + " + std::to_string(k) +
                " of " + std::to_string(global_rows),
            r * (kWindow * 528 + static_cast<double>(k) * 288 + kHeads * kDim * 4),
            r * kHeads * entries * kDim * 4, [=](Memory& memory) {
              const Pages global(memory, kernels::RowFormat::q4n, kDim, sequences, global_rows, 2);
              kernels::SparseAttentionParams p;
              p.q = memory.upload(random_bf16(rows * kHeads * kDim, 3));
              p.sink = memory.upload(std::vector<float>(kHeads, 0.5f));
              p.scale = 0.04419417382f;
              std::vector<kernels::WindowSpan> windows;
              std::vector<int32_t> lists, sequence_of;
              Random random(4);
              for (int64_t i = 0; i < rows; ++i) {
                const auto s = static_cast<int32_t>(i % sequences);
                windows.push_back({s, 5000, 5000 + kWindow, 0, 0});
                sequence_of.push_back(s);
                for (int64_t j = 0; j < k; ++j) {
                  lists.push_back(
                      static_cast<int32_t>(j * global_rows / k + random.below(global_rows / k)));
                }
              }
              p.window = memory.upload(windows);
              p.rings = {memory.random_bytes(sequences * kWindow * 528, 5, 0x3f), kWindow * 528,
                         528, kWindow};
              p.topk = k > 0 ? memory.upload(lists) : nullptr;
              p.k = k;
              p.global = global.rows;
              p.sequences = memory.upload(sequence_of);
              p.inv_freq =
                  memory.upload(kernels::rope_inverse_frequencies(64, 160000, {16, 32, 1, 65536}));
              p.positions = memory.upload(std::vector<int64_t>(static_cast<size_t>(rows), 5127));
              p.rotary_dim = 64;
              p.o = memory.reserve<Bf16>(rows * kHeads * kDim);
              p.rows = rows;
              p.heads = kHeads;
              p.head_dim = kDim;
              return [p](kernels::KernelContext& ctx) { return kernels::sparse_attention(ctx, p); };
            });
}

// ---- indexer ------------------------------------------------------------------------------------------------

void index(Bench& bench, int64_t rows, int64_t sequences, int64_t keys, bool pool) {
  constexpr int64_t kHeads = 32, kColumns = 128;
  const double scored = pool ? 16384 : static_cast<double>(keys);
  const auto r = static_cast<double>(rows);
  // Rows of a sequence could share its keys.
  const double key_bytes = scored * 68 * (pool ? r : static_cast<double>(sequences));
  bench.add("index_score " + std::to_string(rows) + " rows of " + std::to_string(sequences) +
                " sequences, " + std::to_string(keys) + " keys" + (pool ? ", pool" : ""),
            key_bytes + r * static_cast<double>(keys) * 4, r * scored * kHeads * kColumns * 2,
            [=](Memory& memory) {
              const Pages pages(memory, kernels::RowFormat::q4x, kColumns, sequences, keys, 6);
              const Pages queries(memory, kernels::RowFormat::q4x, kColumns, 1, rows * kHeads, 7);
              kernels::IndexScoreParams p;
              p.q = queries.rows.base;
              p.head_weights = memory.upload(random_bf16(rows * kHeads, 8));
              p.head_weight_scale = 1.0f / 64;
              p.keys = pages.rows;
              std::vector<int32_t> sequence_of;
              for (int64_t i = 0; i < rows; ++i) {
                sequence_of.push_back(static_cast<int32_t>(i * sequences / rows));
              }
              p.sequences = memory.upload(sequence_of);
              p.rows_per_sequence = rows / sequences;
              p.visible = memory.upload(std::vector<int64_t>(static_cast<size_t>(rows), keys));
              if (pool) {
                std::vector<uint32_t> mask(static_cast<size_t>(rows * keys / 32));
                Random random(9);
                for (int64_t row = 0; row < rows; ++row) {
                  for (int i = 0; i < 2048; ++i) {
                    const int64_t b = random.below(keys / 8);
                    mask[static_cast<size_t>(row * keys / 32 + b / 4)] |= 0xffu << (b % 4 * 8);
                  }
                }
                p.mask = memory.upload(mask);
                p.mask_stride = keys / 32;
              }
              p.scores = memory.reserve<float>(rows * keys);
              p.score_stride = keys;
              p.rows = rows;
              p.heads = kHeads;
              p.columns = kColumns;
              return [p](kernels::KernelContext& ctx) { return kernels::index_score(ctx, p); };
            });
}

void select(Bench& bench, int64_t rows, int64_t columns, bool blocks) {
  const std::string size = std::to_string(rows) + " x " + std::to_string(columns);
  bench.add((blocks ? "candidate_blocks 2048 of " : "topk 512 of ") + size,
            static_cast<double>(rows * columns) * 4, 0, [=](Memory& memory) {
              std::vector<float> scores(static_cast<size_t>(rows * columns));
              Random random(10);
              for (float& x : scores) x = random.normal();
              const float* device_scores = memory.upload(scores);
              const int64_t* visible =
                  memory.upload(std::vector<int64_t>(static_cast<size_t>(rows), columns));
              auto* mask = memory.reserve<uint32_t>(rows * columns / 32);
              auto* indices = memory.reserve<int32_t>(rows * 512);
              return [=](kernels::KernelContext& ctx) {
                if (blocks) {
                  kernels::CandidateBlocksParams p;
                  p.scores = device_scores;
                  p.score_stride = p.columns = columns;
                  p.visible = visible;
                  p.mask = mask;
                  p.mask_stride = columns / 32;
                  p.rows = rows;
                  return kernels::candidate_blocks(ctx, p);
                }
                kernels::TopkParams p;
                p.scores = device_scores;
                p.score_stride = p.columns = columns;
                p.indices = indices;
                p.rows = rows;
                p.k = 512;
                return kernels::topk(ctx, p);
              };
            });
}

// ---- row-wise -----------------------------------------------------------------------------------------------

void hyper_connections(Bench& bench, int64_t rows) {
  constexpr int64_t kCopies = 4, kD = 5120, kOutputs = 24;
  const auto r = static_cast<double>(rows);
  const std::string size = std::to_string(rows) + " rows";
  const auto x_of = [rows](Memory& memory) {
    return memory.upload(random_bf16(rows * kCopies * kD, 11));
  };
  const auto floats = [](Memory& memory, int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    Random random(12);
    for (float& v : values) v = random.normal() * 0.02f;
    return memory.upload(values);
  };
  bench.add("hc_pre " + size, r * (kCopies + 1) * kD * 2 + kOutputs * kCopies * kD * 4,
            r * kOutputs * kCopies * kD * 2, [=](Memory& memory) {
              kernels::HcPreParams p;
              p.x = x_of(memory);
              p.pre_in = floats(memory, rows * kCopies);
              p.weights = {floats(memory, kOutputs * kCopies * kD), floats(memory, kOutputs),
                           floats(memory, 3)};
              p.norm_weight = memory.upload(random_bf16(kD, 13));
              p.norm_eps = 1e-20f;
              p.hc_eps = 1e-6f;
              p.u = memory.reserve<Bf16>(rows * kD);
              p.pre = memory.reserve<float>(rows * kCopies);
              p.post = memory.reserve<float>(rows * kCopies);
              p.mix = memory.reserve<float>(rows * kCopies * kCopies);
              p.rows = rows;
              p.copies = kCopies;
              p.d = kD;
              return [p](kernels::KernelContext& ctx) { return kernels::hc_pre(ctx, p); };
            });
  bench.add("hc_post " + size, r * (2 * kCopies + 1) * kD * 2, 0, [=](Memory& memory) {
    kernels::HcPostParams p;
    p.x = x_of(memory);
    p.y = memory.upload(random_bf16(rows * kD, 14));
    p.post = floats(memory, rows * kCopies);
    p.mix = floats(memory, rows * kCopies * kCopies);
    p.x_out = memory.reserve<Bf16>(rows * kCopies * kD);
    p.rows = rows;
    p.copies = kCopies;
    p.d = kD;
    return [p](kernels::KernelContext& ctx) { return kernels::hc_post(ctx, p); };
  });
  bench.add("rms_norm 1280 " + size, r * 1280 * 4, 0, [=](Memory& memory) {
    kernels::RmsNormParams p;
    p.x = memory.upload(random_bf16(rows * 1280, 15));
    p.x_stride = p.y_stride = p.columns = 1280;
    p.weight = memory.upload(random_bf16(1280, 16));
    p.y = memory.reserve<Bf16>(rows * 1280);
    p.rows = rows;
    return [p](kernels::KernelContext& ctx) { return kernels::rms_norm(ctx, p); };
  });
  bench.add("rope 64 x 512 " + size, r * 64 * 64 * 4, 0, [=](Memory& memory) {
    kernels::RopeParams p;
    p.x = memory.upload(random_bf16(rows * 64 * 512, 17));
    p.row_stride = 64 * 512;
    p.head_stride = p.head_dim = 512;
    p.positions = memory.upload(std::vector<int64_t>(static_cast<size_t>(rows), 70000));
    p.inv_freq = memory.upload(kernels::rope_inverse_frequencies(64, 10000, {}));
    p.rows = rows;
    p.heads = 64;
    p.rotary_dim = 64;
    return [p](kernels::KernelContext& ctx) { return kernels::rope(ctx, p); };
  });
  bench.add("kv_write q8 " + size, r * (1024 + 528), 0, [=](Memory& memory) {
    kernels::KvWriteParams p;
    p.x = memory.upload(random_bf16(rows * 512, 18));
    p.x_stride = p.columns = 512;
    p.norm_weight = memory.upload(random_bf16(512, 19));
    p.positions = memory.upload(std::vector<int64_t>(static_cast<size_t>(rows), 70000));
    p.inv_freq = memory.upload(kernels::rope_inverse_frequencies(64, 10000, {}));
    p.rows = rows;
    p.rotary_dim = 64;
    p.dense = memory.reserve<uint8_t>(rows * 528);
    return [p](kernels::KernelContext& ctx) { return kernels::kv_write(ctx, p); };
  });
}

}  // namespace
}  // namespace cedar::bench

int main(int argc, char** argv) {
  using namespace cedar::bench;
  if (cedar::cuda_device_count() == 0) {
    std::fprintf(stderr, "bench_cuda_attention: this machine lacks a CUDA device\n");
    return 1;
  }
  std::string json_path, only;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--json" && i + 1 < argc) {
      json_path = argv[++i];
    } else {
      only = argument;
    }
  }
  Bench bench(only);
  for (const int64_t rows : {1, 8, 64}) sparse(bench, rows, rows, 512, 65536);
  for (const int64_t rows : {512, 4096}) sparse(bench, rows, 1, 512, 65536);
  sparse(bench, 4096, 1, 0, 64);
  index(bench, 1, 1, 131072, false);
  index(bench, 1, 1, 1048576, false);
  index(bench, 16, 16, 131072, false);
  index(bench, 64, 64, 131072, false);
  index(bench, 512, 1, 65536, false);
  index(bench, 256, 1, 131072, false);
  index(bench, 1, 1, 1048576, true);
  index(bench, 64, 64, 131072, true);
  index(bench, 512, 1, 65536, true);
  for (const int64_t rows : {1, 64}) {
    select(bench, rows, 131072, false);
    select(bench, rows, 131072, true);
  }
  select(bench, 1, 1048576, false);
  select(bench, 1, 1048576, true);
  select(bench, 512, 65536, false);
  for (const int64_t rows : {1, 64, 4096}) hyper_connections(bench, rows);
  if (json_path.empty()) return 0;
  std::ofstream json(json_path);
  json << bench.report().dump(1) << '\n';
  json.close();
  if (json) return 0;
  std::fprintf(stderr, "bench_cuda_attention: cannot write %s\n", json_path.c_str());
  return 1;
}
