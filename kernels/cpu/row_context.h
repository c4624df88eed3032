#pragma once
// What the row-wise operations share: the instruction set's table, per-thread scratch, rotary
// tables.

#include <atomic>
#include <cstdint>

#include "core/float_formats.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/kernel_context.h"

namespace cedar::kernels::cpu {

/// The table of ctx.isa. REQUIRES: cpu_supports(ctx.isa).
const RowKernels& row_kernels(const KernelContext& ctx);

inline const uint16_t* raw(const Bf16* x) { return reinterpret_cast<const uint16_t*>(x); }
inline uint16_t* raw(Bf16* x) { return reinterpret_cast<uint16_t*>(x); }

/// One block of scratch for each thread of the pool, taken by whichever range runs. Lives in
/// ctx.arena: keep an ArenaScope around it.
class WorkerScratch {
 public:
  WorkerScratch(KernelContext& ctx, int64_t bytes);
  WorkerScratch(const WorkerScratch&) = delete;
  WorkerScratch& operator=(const WorkerScratch&) = delete;

  class Lease {
   public:
    explicit Lease(WorkerScratch& owner);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    uint8_t* data() const { return data_; }

   private:
    std::atomic<bool>* taken_ = nullptr;
    uint8_t* data_ = nullptr;
  };

 private:
  int64_t count_;
  int64_t bytes_;
  std::atomic<bool>* taken_;
  uint8_t* data_;
};

/// cos and sin of one position, spec/model.md 4: the angle is one fp32 product, its cosine and sine
/// are evaluated in double and rounded. `inverse` negates sin.
void rotary_table(int64_t position, const float* inv_freq, int64_t pairs, bool inverse, float* cos,
                  float* sin);

/// e^x of one value, the bits that RowKernels::exp gives.
float exp_scalar(float x);
/// 1 / (1 + e^-x) without overflow.
float sigmoid_scalar(float x);

/// Bytes of AttendQuery::scratch and AttendDense::scratch.
constexpr int64_t attention_scratch_bytes(int64_t queries, int64_t head_dim) {
  const int64_t words = head_dim / 2 * kAttentionBlock       // keys
                        + kAttentionBlock / 2 * head_dim     // values
                        + 16 * (head_dim / 2)                // rows being packed
                        + kAttentionTile * head_dim          // broadcast operands of a tile
                        + queries * head_dim + 2 * queries;  // sums, maxima, totals
  return words * 4;
}

/// Bytes of IndexTile::scratch.
constexpr int64_t index_scratch_bytes(int64_t columns) {
  const int64_t words = columns / 4 * kIndexTile + columns / 8 * 16 + columns / 32 * kIndexTile;
  return words * 4;
}

}  // namespace cedar::kernels::cpu
