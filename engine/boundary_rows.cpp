#include "engine/boundary_rows.h"

#include <algorithm>
#include <cstddef>
#include <string>

#include "core/check.h"
#include "core/device_memory.h"

namespace cedar::engine {

Result<BoundaryRows> BoundaryRows::create(const LoadedModel& model, Position begin, Position end) {
  BoundaryRows rows;
  rows.begin_ = begin;
  rows.end_ = end;
  const int64_t copies = model.config.hc_mult;
  rows.x_bytes_ = copies * model.config.hidden_size * int64_t{2};
  rows.pre_bytes_ = copies * int64_t{4};
  CEDAR_TRY(rows.x_, Buffer::allocate(model.device, (end - begin) * rows.x_bytes_));
  CEDAR_TRY(rows.pre_, Buffer::allocate(model.device, (end - begin) * rows.pre_bytes_));
  return rows;
}

Status BoundaryRows::keep(const kernels::KernelContext& ctx, const StreamState& state, int64_t row,
                          Position begin, Position end) {
  const Position first = std::max(begin, begin_);
  const Position last = std::min(end, end_);
  if (first >= last) return {};
  const int64_t from = row + first - begin;
  const int64_t to = first - begin_;
  const auto copy = [&](Buffer& rows, const void* source, int64_t row_bytes) {
    return copy_on_device(ctx.device, rows.data() + to * row_bytes,
                          static_cast<const std::byte*>(source) + from * row_bytes,
                          (last - first) * row_bytes, ctx.cuda_stream);
  };
  CEDAR_CHECK_OK(copy(x_, state.x, x_bytes_));
  return copy(pre_, state.pre, pre_bytes_);
}

Status BoundaryRows::place(const kernels::KernelContext& ctx, const Handoff& handoff) {
  const Position begin = handoff.length - handoff.boundary_rows;
  const Position first = std::max(begin, begin_);
  const Position last = std::min(handoff.length, end_);
  if (first >= last) return {};
  const auto copy = [&](Buffer& rows, const Buffer& source, int64_t row_bytes) {
    return copy_to_device(ctx.device, rows.data() + (first - begin_) * row_bytes,
                          source.data() + (first - begin) * row_bytes, (last - first) * row_bytes,
                          ctx.cuda_stream);
  };
  CEDAR_CHECK_OK(copy(x_, handoff.boundary_x, x_bytes_));
  return copy(pre_, handoff.boundary_pre, pre_bytes_);
}

Status BoundaryRows::fetch(const kernels::KernelContext& ctx, Position end, int64_t rows,
                           Handoff& handoff) const {
  const Position begin = end - rows;
  CEDAR_ASSERT(begin >= begin_ && end <= end_, std::to_string(begin) + "-" + std::to_string(end) +
                                                   " of " + std::to_string(begin_) + "-" +
                                                   std::to_string(end_));
  const auto copy = [&](const Buffer& source, int64_t row_bytes) -> Result<Buffer> {
    CEDAR_TRY(Buffer host, Buffer::allocate(Device{}, rows * row_bytes));
    CEDAR_CHECK_OK(copy_to_host(ctx.device, host.data(),
                                source.data() + (begin - begin_) * row_bytes, rows * row_bytes,
                                ctx.cuda_stream));
    return host;
  };
  CEDAR_TRY(handoff.boundary_x, copy(x_, x_bytes_));
  CEDAR_TRY(handoff.boundary_pre, copy(pre_, pre_bytes_));
  handoff.boundary_rows = rows;
  return {};
}

}  // namespace cedar::engine
