// SPDX-License-Identifier: Apache-2.0
// Normalisation of rows of f32, f16 and bf16 on the CPU, in f32, and the slots.
#include "core/row_convert.h"

#define real                            float
#define square_root                     sqrtf
#define load_row(m, row, col, n, to)    spops_row_load(m, row, col, n, to)
#define store_row(m, row, col, n, from) spops_row_store(m, row, col, n, from)
#define activate(args, n, v)            (args)->activations->apply((args)->activated, n, v)
#define differentiate(args, n, y, g)    (args)->activations->differentiate((args)->activated, n, y, g)
#include "norm/norm_rows.h"

#include "norm/group_rows.h"

#include "backends/backend_cpu.h"
#include "norm/norm_f64.h"

static bool is_f64(const spops_norm_args *args)
{
    return args->x.dtype == SPOPS_DTYPE_F64;
}

spops_status spops_cpu_norm_statistics(spops_context *ctx, const spops_norm_args *args)
{
    return is_f64(args) ? spops_norm_statistics_f64(ctx, args) : run_statistics(ctx, args);
}

spops_status spops_cpu_norm_forward(spops_context *ctx, const spops_norm_args *args)
{
    return is_f64(args) ? spops_norm_forward_f64(ctx, args) : run_forward(ctx, args);
}

spops_status spops_cpu_norm_backward(spops_context *ctx, const spops_norm_args *args)
{
    return is_f64(args) ? spops_norm_backward_f64(ctx, args) : run_backward(ctx, args);
}

spops_status spops_cpu_norm_merge(spops_context *ctx, const spops_norm_merge_args *args)
{
    (void)ctx;
    return args->chunks.dtype == SPOPS_DTYPE_F64 ? spops_norm_merge_f64(args) : run_merge(args);
}

spops_status spops_cpu_group_statistics(spops_context *ctx, const spops_group_norm_args *args)
{
    return args->x.dtype == SPOPS_DTYPE_F64 ? spops_group_statistics_f64(ctx, args)
                                            : run_group_statistics(ctx, args);
}

spops_status spops_cpu_group_forward(spops_context *ctx, const spops_group_norm_args *args)
{
    return args->x.dtype == SPOPS_DTYPE_F64 ? spops_group_forward_f64(ctx, args)
                                            : run_group_forward(ctx, args);
}

spops_status spops_cpu_group_backward(spops_context *ctx, const spops_group_norm_args *args)
{
    return args->x.dtype == SPOPS_DTYPE_F64 ? spops_group_backward_f64(ctx, args)
                                            : run_group_backward(ctx, args);
}
