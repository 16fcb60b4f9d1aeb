// SPDX-License-Identifier: Apache-2.0
// What the kernel of MVMR is given. Its instances for a dtype are in a source of their own.
#ifndef SPOPS_KERNELS_MVMR_MVMR_PARAMS_CUH
#define SPOPS_KERNELS_MVMR_MVMR_PARAMS_CUH

#include "kernels/mvmr/mvmr_launch.cuh"

namespace spops
{

// What becomes of products: sums by row, rows on their own, or inner products with rows of g.
enum mvmr_mode { MODE_SUM, MODE_DIRECT, MODE_DOT };

struct mvmr_params {
    const int32_t *offsets;
    const int4 *triplets;       // row, from, matrix, number
    int64_t num_rows;           // of the result
    int tile_rows;              // of sums
    const int32_t *num_written; // [1] of them that are written; null: all
    int mode;
    const void *x, *w, *s, *g;
    int64_t x_stride, w_stride, g_stride;
    int32_t s_dtype;
    int32_t x_cols, out_cols, groups; // columns of one group
    product_result out;
    float *grad_s;
};

// T: f32, f16, bf16. wide: rows of x and of the matrices may be loaded 16 bytes at a time.
template <class T>
spops_status launch_mvmr(spops_context *ctx, const spops_mvmr_args *args, const mvmr_params &p,
                         bool wide);
template <class T> spops_status prepare_mvmr(spops_context *ctx);

} // namespace spops

#endif
