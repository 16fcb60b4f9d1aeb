// SPDX-License-Identifier: Apache-2.0
#include "norm/norm_f64.h"

#include <math.h>
#include <string.h>

#include "core/rows_f64.h"

static void load_row(spops_matrix m, int64_t row, int64_t col, int n, double *to)
{
    memcpy(to, spops_row_f64(m, row) + col, (size_t)n * sizeof *to);
}

static void store_row(spops_matrix m, int64_t row, int64_t col, int n, const double *from)
{
    memcpy(spops_row_f64(m, row) + col, from, (size_t)n * sizeof *from);
}

#define real                         double
#define square_root                  sqrt
#define activate(args, n, v)         spops_activate_f64((args)->activated, n, v)
#define differentiate(args, n, y, g) spops_differentiate_f64((args)->activated, n, y, g)
#include "norm/norm_rows.h"

#include "norm/group_rows.h"

spops_status spops_norm_statistics_f64(spops_context *ctx, const spops_norm_args *args)
{
    return run_statistics(ctx, args);
}

spops_status spops_norm_forward_f64(spops_context *ctx, const spops_norm_args *args)
{
    return run_forward(ctx, args);
}

spops_status spops_norm_backward_f64(spops_context *ctx, const spops_norm_args *args)
{
    return run_backward(ctx, args);
}

spops_status spops_norm_merge_f64(const spops_norm_merge_args *args)
{
    return run_merge(args);
}

spops_status spops_group_statistics_f64(spops_context *ctx, const spops_group_norm_args *args)
{
    return run_group_statistics(ctx, args);
}

spops_status spops_group_forward_f64(spops_context *ctx, const spops_group_norm_args *args)
{
    return run_group_forward(ctx, args);
}

spops_status spops_group_backward_f64(spops_context *ctx, const spops_group_norm_args *args)
{
    return run_group_backward(ctx, args);
}
