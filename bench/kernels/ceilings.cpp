#include "bench/kernels/ceilings.h"

#include <atomic>
#include <cstring>
#include <vector>

#include "core/units.h"

namespace cedar::bench {
namespace {

constexpr double kSeconds = 0.25;  // per ceiling
constexpr int64_t kBufferBytes = 256_MiB;
constexpr int64_t kChunkBytes =
    256_KiB;  // what one thread takes at a time: page-wise streams, as kernels read

double measure_read(ThreadPool& pool, Clock clock, ReadLoop loop) {
  std::vector<char> storage(static_cast<size_t>(kBufferBytes + 64), 1);
  // From a cache line's start: a wide load that straddles two lines counts twice.
  const char* buffer = storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64);
  std::atomic<uint32_t> total{0};  // gives the loop a use
  const Timing timing = time_calls(clock, kSeconds, [&] {
    pool.parallel_for(kBufferBytes / kChunkBytes, 4, [&](int64_t begin, int64_t end) {
      total += loop(buffer + begin * kChunkBytes, (end - begin) * kChunkBytes);
    });
  });
  return static_cast<double>(kBufferBytes) / timing.best_s;
}

double measure_copy(ThreadPool& pool, Clock clock) {
  std::vector<char> from(static_cast<size_t>(kBufferBytes), 1), to(from.size(), 2);
  const Timing timing = time_calls(clock, kSeconds, [&] {
    pool.parallel_for(kBufferBytes / kChunkBytes, 4, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin * kChunkBytes, from.data() + begin * kChunkBytes,
                  static_cast<size_t>((end - begin) * kChunkBytes));
    });
  });
  return 2.0 * static_cast<double>(kBufferBytes) / timing.best_s;
}

double measure_peak(ThreadPool& pool, Clock clock, PeakLoop loop) {
  constexpr int64_t kIterations = 200000;
  std::vector<float> sinks(static_cast<size_t>(pool.threads()));
  double flops = 0;
  const Timing timing = time_calls(clock, kSeconds, [&] {
    pool.parallel_for(pool.threads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const double done = loop(kIterations, &sinks[static_cast<size_t>(i)]);
        if (i == 0) flops = done;
      }
    });
  });
  return flops * pool.threads() / timing.best_s;
}

}  // namespace

PeakLoop f32_peak_loop(kernels::CpuIsa isa) {
  switch (isa) {
    case kernels::CpuIsa::avx512_bf16: return f32_peak_avx512;
    case kernels::CpuIsa::avx2: return f32_peak_avx2;
    case kernels::CpuIsa::portable: break;
  }
  return f32_peak_portable;
}

ReadLoop read_loop(kernels::CpuIsa isa) {
  switch (isa) {
    case kernels::CpuIsa::avx512_bf16: return read_all_avx512;
    case kernels::CpuIsa::avx2: return read_all_avx2;
    case kernels::CpuIsa::portable: break;
  }
  return read_all_portable;
}

PeakLoop bf16_peak_loop(kernels::CpuIsa isa) {
  return isa == kernels::CpuIsa::avx512_bf16 ? bf16_peak_avx512 : f32_peak_loop(isa);
}

Ceilings measure_ceilings(ThreadPool& pool, kernels::CpuIsa isa, Clock clock) {
  Ceilings ceilings;
  ceilings.read_bytes_per_s = measure_read(pool, clock, read_loop(isa));
  ceilings.copy_bytes_per_s = measure_copy(pool, clock);
  ceilings.bf16_flop_per_s = measure_peak(pool, clock, bf16_peak_loop(isa));
  ceilings.f32_flop_per_s = measure_peak(pool, clock, f32_peak_loop(isa));
  return ceilings;
}

}  // namespace cedar::bench
