#pragma once
// What follows a layer's first projections: the query's latent is normalised and quantised, the window row is made.

#include "kernels/kv_write.h"
#include "kernels/quantize.h"
#include "kernels/rms_norm.h"

namespace cedar::kernels {

/// rms_norm(norm); quantised = Q8(norm.y); kv_write(window). One launch on CUDA, where norm.y is left alone and only the
/// values of `quantised` are written.
struct QueryWindowParams {
  RmsNormParams norm;
  Q8Rows quantised;  // [rows, norm.columns]
  KvWriteParams window;
};
/// REQUIRES: both halves have the same rows; window.dense.
Status query_window(KernelContext& ctx, const QueryWindowParams& p);

}  // namespace cedar::kernels
