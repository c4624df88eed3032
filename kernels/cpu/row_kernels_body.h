// Included once by every row_kernels_<isa>.cpp, last: the table of this level's functions.

namespace cedar::kernels::cpu {

const RowKernels CEDAR_ROW_KERNELS = {
    .rms_norm = CEDAR_ISA::rms_norm,
    .square_sum = CEDAR_ISA::square_sum,
    .rotate_pairs = CEDAR_ISA::rotate_pairs,
    .rotate_halves = CEDAR_ISA::rotate_halves,
    .widen_q8 = CEDAR_ISA::widen_q8,
    .quantize_q4x = CEDAR_ISA::quantize_q4x,
    .quantize_q4n = CEDAR_ISA::quantize_q4n,
    .attend_query = CEDAR_ISA::attend_query,
    .attend_dense = CEDAR_ISA::attend_dense,
    .index_tile = CEDAR_ISA::index_tile,
    .select_scan = CEDAR_ISA::select_scan,
    .hc_dots = CEDAR_ISA::hc_dots,
    .hc_collapse = CEDAR_ISA::hc_collapse,
    .hc_post = CEDAR_ISA::hc_post,
    .hc_mean = CEDAR_ISA::hc_mean,
    .engram_dot = CEDAR_ISA::engram_dot,
    .add_scaled = CEDAR_ISA::add_scaled,
    .silu_mul = CEDAR_ISA::silu_mul,
    .exp = CEDAR_ISA::exp_row,
};

}  // namespace cedar::kernels::cpu
