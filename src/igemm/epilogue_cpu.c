// SPDX-License-Identifier: Apache-2.0
// The epilogue of a convolution on the CPU.
#include "backends/backend_cpu.h"
#include "core/row_convert.h"
#include "core/rows_f64.h"
#include "core/threads.h"
#include "igemm/epilogue_args.h"

#define STRIP SPOPS_EPILOGUE_STRIP // columns

void spops_epilogue_finish(const spops_epilogue_args *args, int64_t row, int64_t col, int n,
                           float *v)
{
    const spops_epilogue *e = &args->epilogue;
    float residual[STRIP];

    if (e->bias != NULL)
        for (int c = 0; c < n; ++c)
            v[c] += e->bias[col + c];
    if (e->scale != NULL)
        for (int c = 0; c < n; ++c)
            v[c] *= e->scale[col + c];
    if (e->shift != NULL)
        for (int c = 0; c < n; ++c)
            v[c] += e->shift[col + c];
    if (e->residual.data != NULL) {
        spops_row_load(e->residual, row, col, n, residual);
        for (int c = 0; c < n; ++c)
            v[c] += residual[c];
    }
    if (e->activated.activation != SPOPS_ACTIVATION_NONE) e->activations->apply(e->activated, n, v);
    spops_row_store(args->out, row, col, n, v);
}

void spops_epilogue_finish_f64(const spops_epilogue_args *args, int64_t row, int64_t col, int n,
                               double *v)
{
    const spops_epilogue *e = &args->epilogue;
    const spops_matrix out = args->out, r = e->residual;
    const double *bias = (const double *)(const void *)e->bias;
    const double *scale = (const double *)(const void *)e->scale;
    const double *shift = (const double *)(const void *)e->shift;

    for (int c = 0; c < n; ++c) {
        if (bias != NULL) v[c] += bias[col + c];
        if (scale != NULL) v[c] *= scale[col + c];
        if (shift != NULL) v[c] += shift[col + c];
        if (r.data != NULL) v[c] += spops_double_of(r.dtype, r.data, row * r.row_stride + col + c);
    }
    spops_activate_f64(e->activated, n, v);
    for (int c = 0; c < n; ++c)
        spops_store_double(out.dtype, out.data, row * out.row_stride + col + c, v[c]);
}

static void finish_strip(const spops_epilogue_args *args, int64_t row, int64_t col, int n)
{
    float v[STRIP];

    if (args->epilogue.is_f64) {
        double wide[STRIP];
        for (int c = 0; c < n; ++c)
            wide[c] = spops_double_of(args->out.dtype, args->out.data,
                                      row * args->out.row_stride + col + c);
        spops_epilogue_finish_f64(args, row, col, n, wide);
        return;
    }
    spops_row_load(args->out, row, col, n, v);
    spops_epilogue_finish(args, row, col, n, v);
}

static void finish_rows(const void *work, int64_t begin, int64_t end)
{
    const spops_epilogue_args *args = (const spops_epilogue_args *)work;
    const int64_t cols = args->out.cols;
    for (int64_t row = begin; row < end; ++row)
        for (int64_t col = 0; col < cols; col += STRIP)
            finish_strip(args, row, col, cols - col < STRIP ? (int)(cols - col) : STRIP);
}

spops_status spops_cpu_epilogue(spops_context *ctx, const spops_epilogue_args *args)
{
    const int64_t all = args->out.rows;
    const int64_t rows = args->num_rows != NULL && *args->num_rows < all ? *args->num_rows : all;
    spops_parallel_for(spops_team_for(ctx, rows * args->out.cols), rows, 0, finish_rows, args);
    return SPOPS_STATUS_OK;
}
