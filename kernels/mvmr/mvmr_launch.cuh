// SPDX-License-Identifier: Apache-2.0
// What the launchers of mvmr and vvor decide alike: which kernel an argument list can take.
#ifndef SPOPS_KERNELS_MVMR_MVMR_LAUNCH_CUH
#define SPOPS_KERNELS_MVMR_MVMR_LAUNCH_CUH

#include "kernels/launchers.h"
#include "kernels/mvmr/product.cuh"
#include "mvmr/mvmr.h"

namespace spops
{

// Whether rows of m, and groups of `cols` columns in them, begin on a multiple of 16 bytes.
inline bool wide_columns(spops_matrix m, int64_t cols, int64_t groups)
{
    const int64_t bytes = (int64_t)spops_dtype_bytes(m.dtype);
    return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 &&
           (m.rows <= 1 || m.row_stride * bytes % 16 == 0) &&
           (groups <= 1 || cols * bytes % 16 == 0);
}

inline product_result result_of(spops_matrix m, int64_t cols, int64_t groups, bool accumulate)
{
    product_result r = {};
    r.data = m.data;
    r.stride = m.row_stride;
    r.f32 = m.dtype == SPOPS_DTYPE_F32;
    r.wide = wide_columns(m, cols, groups);
    r.accumulate = accumulate;
    return r;
}

// The fastest that the device has. tf32 only where rows are wide: elsewhere loads decide.
inline product_engine engine_for(const spops_context *ctx, spops_dtype dtype, spops_math math,
                                 bool wide)
{
    if (ctx->info.compute_capability < 80) return ENGINE_F32;
    if (dtype != SPOPS_DTYPE_F32) return ENGINE_UNITS;
    return math == SPOPS_MATH_TF32 && wide ? ENGINE_TF32 : ENGINE_F32;
}

// Rows of a result that are written; those after them are left alone.
__device__ __forceinline__ int64_t rows_written(const int32_t *num_written, int64_t num_rows)
{
    if (num_written == nullptr) return num_rows;
    const int64_t n = *num_written;
    return n < 0 ? 0 : n < num_rows ? n : num_rows;
}

// The same patterns with diagonal matrices (mvmr_diagonal.cu).
spops_status mvmr_diagonal(spops_context *ctx, const spops_mvmr_args *args);
spops_status vvor_diagonal(spops_context *ctx, const spops_vvor_args *args);

} // namespace spops

#endif
