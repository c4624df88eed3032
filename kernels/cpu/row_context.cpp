#include "kernels/cpu/row_context.h"

#include <cmath>
#include <memory>

#include "core/units.h"
#include "kernels/cpu/exp.h"
#include "kernels/rope.h"

namespace cedar::kernels::cpu {

const RowKernels& row_kernels(const KernelContext& ctx) {
  switch (ctx.isa) {
    case CpuIsa::avx512_bf16: return kRowKernelsAvx512;
    case CpuIsa::avx2: return kRowKernelsAvx2;
    case CpuIsa::portable: break;
  }
  return kRowKernelsPortable;
}

WorkerScratch::WorkerScratch(KernelContext& ctx, int64_t bytes)
    : count_(ctx.pool->threads()), bytes_(align_up(bytes, Buffer::kAlignment)) {
  taken_ = ctx.arena->allocate<std::atomic<bool>>(count_);
  std::uninitialized_default_construct_n(taken_, count_);
  data_ = ctx.arena->allocate<uint8_t>(count_ * bytes_);
}

// A pool runs at most threads() ranges at a time, so a free block exists whenever a range asks.
WorkerScratch::Lease::Lease(WorkerScratch& owner) {
  for (int64_t i = 0;; i = (i + 1) % owner.count_) {
    if (!owner.taken_[i].exchange(true, std::memory_order_acquire)) {
      taken_ = owner.taken_ + i;
      data_ = owner.data_ + i * owner.bytes_;
      return;
    }
  }
}

WorkerScratch::Lease::~Lease() { taken_->store(false, std::memory_order_release); }

void rotary_table(int64_t position, const float* inv_freq, int64_t pairs, bool inverse, float* cos,
                  float* sin) {
  rope_table(position, inv_freq, pairs, cos, sin);
  if (!inverse) return;
  for (int64_t i = 0; i < pairs; ++i) sin[i] = -sin[i];
}

float exp_scalar(float x) {
  using namespace exp_constants;
  if (x < kLowest) return 0;
  const float clamped = x < kHighest ? x : kHighest;
  const float shifted = clamped * kLog2e + kRound;
  const float n = shifted - kRound;
  float r = clamped - n * kLn2High;
  r = r - n * kLn2Low;
  float p = kC7;
  for (float c : {kC6, kC5, kC4, kC3, kC2}) p = p * r + c;
  p = (p * (r * r) + r) + 1.0f;
  const int32_t integer = static_cast<int32_t>(float_bits(shifted) - float_bits(kRound));
  const int32_t half = integer >> 1;
  const float first = bits_float(static_cast<uint32_t>(half + 127) << 23);
  const float second = bits_float(static_cast<uint32_t>(integer - half + 127) << 23);
  return p * first * second;
}

float sigmoid_scalar(float x) {
  const float e = exp_scalar(-std::fabs(x));
  return (x < 0 ? e : 1.0f) / (1.0f + e);
}

}  // namespace cedar::kernels::cpu
